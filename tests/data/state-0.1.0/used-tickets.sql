BEGIN TRANSACTION;
CREATE TABLE reports (
    id INTEGER PRIMARY KEY AUTOINCREMENT, launch TEXT NOT NULL, phase TEXT NOT NULL, detail TEXT NOT NULL,
    reported_at REAL NOT NULL
) STRICT;
INSERT INTO "reports" VALUES(1,'cloud1-5k3f','redeemed','',1799999950.0);
INSERT INTO "reports" VALUES(2,'cloud1-5k3f','started','',1799999960.0);
CREATE TABLE used (
    launch TEXT PRIMARY KEY, nonce_hash TEXT NOT NULL, source TEXT NOT NULL, used_at REAL NOT NULL
) STRICT;
INSERT INTO "used" VALUES('cloud1-5k3f','9e3f156324d42f0ea4b6f4fce81d56fbd64a2143a3fdd60a130d9c90e5b4d688','10.0.0.7',1799999950.0);
CREATE INDEX reports_of_launch ON reports (launch, id);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('reports',2);
PRAGMA user_version = 435997160;
PRAGMA application_id = 0;
COMMIT;
