BEGIN TRANSACTION;
CREATE TABLE advised (
        hour INTEGER PRIMARY KEY,
        span_s REAL NOT NULL,
        cost REAL NOT NULL,         -- of the nodes that stood
        cost_advised REAL NOT NULL, -- had been done what was only said
        busy_touched INTEGER NOT NULL
    );
CREATE TABLE begun (at REAL NOT NULL);
INSERT INTO "begun" VALUES(1800000000.0);
CREATE TABLE entries (
        id INTEGER PRIMARY KEY,
        at REAL NOT NULL,           -- seconds since the epoch, as everywhere here
        kind TEXT NOT NULL,
        subject TEXT NOT NULL,
        what TEXT NOT NULL,
        code TEXT NOT NULL,
        figures TEXT NOT NULL,      -- JSON
        node_type TEXT NOT NULL
    );
INSERT INTO "entries" VALUES(1,1800000000.0,'decided','cloud1-1a3185c5000','BootNode','demand','{"node_type": "cloud", "jobs": 1, "serves": ["7"]}','cloud');
INSERT INTO "entries" VALUES(2,1800000000.0,'because','type cloud','type','bought','{"nodes": 1}','cloud');
INSERT INTO "entries" VALUES(3,1800000000.0,'because','type gpu','type','another_mix_is_cheaper','{"node_types": ["cloud"], "price_per_hour": "0.40"}','gpu');
INSERT INTO "entries" VALUES(4,1800000000.0,'because','7','waits','node_ordered','{"nodes": ["cloud1"]}','');
INSERT INTO "entries" VALUES(5,1800000010.0,'failed','','create','quota','{"detail": "enough"}','');
INSERT INTO "entries" VALUES(6,1800000010.0,'node','cloud1-1','booting','','{"was": "unknown"}','cloud');
INSERT INTO "entries" VALUES(7,1800000010.0,'because','cloud1-1','booting','booting','{"waited_s": 610.0, "boot_timeout_s": 900.0}','cloud');
INSERT INTO "entries" VALUES(8,1800000010.0,'because','type cloud','type','nothing_is_short','{}','cloud');
INSERT INTO "entries" VALUES(9,1800000010.0,'because','type gpu','type','nothing_is_short','{}','gpu');
INSERT INTO "entries" VALUES(10,1800000010.0,'because','7','waits','node_coming','{"nodes": ["cloud1"]}','');
INSERT INTO "entries" VALUES(11,1800000100.0,'node','cloud1-1','busy','','{"was": "booting"}','cloud');
INSERT INTO "entries" VALUES(12,1800000100.0,'because','cloud1-1','busy','busy','{}','cloud');
INSERT INTO "entries" VALUES(13,1800000100.0,'job','7','began','','{"user": 0, "queue": "batch", "submitted_at": 1799999940.0, "wait_s": 160.0}','');
INSERT INTO "entries" VALUES(14,1800000460.0,'node','cloud1-1','idle','','{"was": "busy"}','cloud');
INSERT INTO "entries" VALUES(15,1800000460.0,'because','cloud1-1','idle','paid_time_left','{"idle_s": 760.0, "window_left_s": 2540.0, "stop_lead_s": 60.0}','cloud');
INSERT INTO "entries" VALUES(16,1800000460.0,'job','7','ended','','{"user": 0, "queue": "batch", "submitted_at": 1799999940.0, "wait_s": 520.0}','');
INSERT INTO "entries" VALUES(17,1800000500.0,'node','cloud1-1','ended','','{"slot": "cloud1", "requested_at": 1799999400.0}','cloud');
CREATE TABLE jobs (
        job TEXT PRIMARY KEY,
        submitted_at REAL NOT NULL,
        began_at REAL,              -- NULL: it ended before it could
        ended_at REAL NOT NULL,
        duration_s REAL NOT NULL,   -- asked for; 0 is unlimited
        userid INTEGER NOT NULL,
        queue TEXT NOT NULL,
        shape TEXT NOT NULL         -- JSON
    ) WITHOUT ROWID;
INSERT INTO "jobs" VALUES('7',1799999940.0,NULL,1800000460.0,0.0,0,'batch','{"slots":1,"cores_per_slot":1,"nodes":1,"exclusive":true}');
CREATE TABLE lives (
        launch TEXT PRIMARY KEY,
        slot TEXT NOT NULL,
        node_type TEXT NOT NULL,
        requested_at REAL NOT NULL,
        found INTEGER NOT NULL,
        up_at REAL,
        joined_at REAL,
        first_job_at REAL,
        ended_at REAL,
        outcome TEXT NOT NULL,
        why TEXT NOT NULL,
        cost REAL NOT NULL
    ) WITHOUT ROWID;
INSERT INTO "lives" VALUES('cloud1-1','cloud1','cloud',1799999400.0,0,1800000010.0,1799999700.0,1799999700.0,1800000500.0,'joined','gone',0.4);
CREATE TABLE spend (
        hour INTEGER NOT NULL,      -- since the epoch
        node_type TEXT NOT NULL,
        userid INTEGER NOT NULL,    -- -1: nobody's job
        queue TEXT NOT NULL,
        use TEXT NOT NULL,          -- job, or what else the node did
        cost REAL NOT NULL,
        node_s REAL NOT NULL,
        PRIMARY KEY (hour, node_type, userid, queue, use)
    ) WITHOUT ROWID;
INSERT INTO "spend" VALUES(500000,'cloud',-1,'','boot',0.01,90.0);
INSERT INTO "spend" VALUES(500000,'cloud',-1,'','idle',4.44444444444444444058e-03,40.0);
INSERT INTO "spend" VALUES(500000,'cloud',-1,'','unused',3.45555555555555560243e-01,0.0);
INSERT INTO "spend" VALUES(500000,'cloud',0,'batch','job',0.04,360.0);
CREATE TABLE waits (
        job TEXT PRIMARY KEY,
        at REAL NOT NULL,           -- when it began
        wait_s REAL NOT NULL,
        userid INTEGER NOT NULL,
        queue TEXT NOT NULL
    , advised_s REAL) WITHOUT ROWID;
INSERT INTO "waits" VALUES('7',1800000100.0,160.0,0,'batch',NULL);
CREATE INDEX entries_of_a_subject ON entries (subject, at);
CREATE INDEX entries_by_time ON entries (at);
CREATE INDEX lives_by_time ON lives (requested_at);
CREATE INDEX waits_by_time ON waits (at);
CREATE INDEX jobs_by_time ON jobs (submitted_at);
PRAGMA user_version = 4;
PRAGMA application_id = 0;
COMMIT;
