# ruff: noqa: INP001 - a folder of pages, not a package
"""Write the man pages and the bash completion from the command line's parser and the settings' models.

``doc/generate.py`` calls this. Sources: man-pages(7), groff_man(7), bash(1) on programmable completion.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nodemanager.cli.parsing.parser import Parser

PROGRAM = "flux-node-manager"

EXIT_STATUS = re.compile(r"(\d+) ([^;]+)")


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of a section: its meaning, its allowed values and its default, in Markdown."""

    key: str
    meaning: str
    written_as: str
    default: str


# Explained once for all verbs.
COMMON = frozenset({"--config", "--json", "--help"})


# --- reading the parser -----------------------------------------------------------------------------------


def _own_options(parser: Parser) -> list[argparse.Action]:
    """The options of a verb, without those that are the same for all verbs."""
    return [action for action in parser.options() if not COMMON & set(action.option_strings)]


def _verbs_of(parser: Parser) -> list[tuple[str, Parser]]:
    return parser.verbs() or []


# --- flux-node-manager(1) ---------------------------------------------------------------------------------


def command_page(parser: Parser) -> str:
    lines = [_head(PROGRAM, 1, "cloud nodes for a Flux instance")]
    lines += [".SH SYNOPSIS", f".B {_text(PROGRAM)}", SYNOPSIS]
    lines += [".SH DESCRIPTION", _text(parser.description or ""), ".PP", *DESCRIPTION, ".SH VERBS"]
    verbs = dict(_verbs_of(parser))
    for title, names in parser.groups.items():
        lines += [
            f".SS {_text(title.capitalize())}",
            *(line for it in names for line in _verb_items(it, verbs[it])),
        ]
    lines += [".SH OPTIONS", *(line for action in parser.options() for line in _item(action)), *JSON_ITEM]
    lines.append(".SH EXIT STATUS")
    for status, meaning in EXIT_STATUS.findall(parser.epilog or ""):
        lines += [".TP", rf"\fB{status}\fR", _text(meaning.strip())]
    return _page([*lines, *COMMAND_FOOT])


def _verb_items(name: str, verb: Parser) -> Iterator[str]:
    values = "".join(rf" \fI{_text(str(action.metavar))}\fR" for action in verb.arguments())
    yield from (".TP", rf"\fB{_text(name)}\fR{values}", _text(verb.description or ""))
    if example := (verb.epilog or "").partition("\n")[2].strip():
        yield from (".br", rf"Example: \fI{_text(example)}\fR")
    shown = [line for action in (*verb.arguments(), *_own_options(verb)) for line in _item(action)]
    shown += [line for sub, parser in _verbs_of(verb) for line in _verb_items(sub, parser)]
    yield from (".RS", *shown, ".RE") if shown else ()


def _item(action: argparse.Action) -> Iterator[str]:
    value = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    takes_value = action.nargs != 0
    names = ", ".join(rf"\fB{_text(name)}\fR" for name in action.option_strings)
    yield ".TP"
    yield names + (rf" \fI{_text(value)}\fR" if takes_value and names else "") or rf"\fI{_text(value)}\fR"
    yield _text((action.help or "").replace("%(prog)s", PROGRAM))


SYNOPSIS = r"\fB\-\-config\fR \fISITE.INI\fR [\fIVERB\fR] [\fIOPTIONS\fR]"

JSON_ITEM = (
    ".TP",
    r"\fB\-\-json\fR",
    "Print JSON, after a verb that prints tables and after check, simulate and ensemble.",
)

DESCRIPTION = (
    "The node manager follows the queue of a Flux instance and buys the cheapest nodes that fit the waiting jobs.",
    "The nodes join the running instance and are terminated when they are no longer worth their price. Without a",
    r"verb it runs the service in the foreground. With flux\-core 0.86 or later, \fBflux node\-manager\fR is the",
    "same command.",
    ".PP",
    r"The site file defines what the service may do, see \fBsite.ini\fR(5). With \fImode = observe\fR, the",
    "default, it reports its decisions and changes nothing.",
)

COMMAND_FOOT = (
    ".SH SIGNALS",
    ".TP",
    r"\fBSIGTERM\fR, \fBSIGINT\fR",
    "End the service. Nodes keep running and costing money, and the next start finds them again.",
    ".TP",
    r"\fBSIGHUP\fR",
    "Read the site file again. If it has a fault, the log reports it and the old settings stay in force.",
    ".SH ENVIRONMENT",
    ".TP",
    r"\fBFLUX_URI\fR",
    "The Flux instance, if the site names none.",
    ".TP",
    r"\fBPATH\fR, \fBPYTHONPATH\fR",
    r"Where the service finds flux\-core's Python bindings: those of the \fBflux\fR on PATH, or on PYTHONPATH.",
    ".TP",
    r"\fBNOTIFY_SOCKET\fR, \fBWATCHDOG_USEC\fR, \fBJOURNAL_STREAM\fR",
    r"Set by systemd, see \fBsd_notify\fR(3).",
    ".PP",
    r"A site file can insert any other variable as \fI${NAME}\fR.",
    ".SH FILES",
    ".TP",
    r"\fI/etc/flux\-node\-manager/site.ini\fR",
    "The site file that the systemd unit uses.",
    ".TP",
    r"\fI/var/lib/flux\-node\-manager\fR",
    "The state directory that the systemd unit creates.",
    ".SH SEE ALSO",
    r"\fBsite.ini\fR(5), \fBflux\fR(1), \fBflux\-broker\fR(1), \fBflux\-resource\fR(1)",
)


# --- site.ini(5) ------------------------------------------------------------------------------------------


def site_page(sections: Mapping[str, Sequence[Setting]], credentials: str) -> str:
    lines = [_head("site.ini", 5, "the settings of flux-node-manager"), ".SH DESCRIPTION", *SITE_DESCRIPTION]
    for section, settings in sections.items():
        lines += [f".SH [{_text(section)}]"]
        for setting in settings:
            lines += [".TP", rf"\fB{_text(setting.key)}\fR", _text(_plain(setting.meaning)), ".br"]
            lines += [_text(f"Written as {_plain(setting.written_as)}; {_default(setting.default)}.")]
        if section == "Cloud":
            lines += [".SH [Cloud Credentials]", _text(_plain(credentials))]
    return _page([*lines, ".SH SEE ALSO", r"\fBflux\-node\-manager\fR(1)"])


def _default(default: str) -> str:
    return default if default == "required" else f"default: {_plain(default)}"


SITE_DESCRIPTION = (
    r"A site is one INI file. \fBflux\-node\-manager check \-\-config site.ini\fR reads it and lists all faults at",
    "once, each with its line. An unknown key is a fault.",
    ".PP",
    r"Durations use Flux's notation: \fI90s\fR, \fI5m\fR, \fI1.5h\fR; a number alone means seconds. Sizes have a",
    r"binary unit: \fI512MiB\fR, \fI4GiB\fR. Slots are a host list: \fIcloud[1\-4],gpu[01\-02]\fR. Comments need",
    r"lines of their own. \fI${NAME}\fR inserts an environment variable into any value.",
    ".PP",
    r"\fB[Site]\fR, \fB[Cloud]\fR and \fB[Limits]\fR have required keys, and so does every",
    r"\fB[Node NAME]\fR. There must be at least one \fB[Node NAME]\fR.",
)


# --- roff -------------------------------------------------------------------------------------------------


def _head(name: str, section: int, what: str) -> str:
    # No date and no version, so that the page changes only with its content.
    title = f'.TH "{_text(name.upper())}" "{section}" "" "flux\\-node\\-manager" "flux\\-node\\-manager"'
    made = '.\\" Made by python -m doc.generate. Do not edit.'
    return "\n".join((made, title, ".nh", ".SH NAME", f"{_text(name)} \\- {_text(what)}"))


def _page(lines: Sequence[str]) -> str:
    return "\n".join(line for line in lines if line) + "\n"


def _text(text: str) -> str:
    """Escape plain text for roff, so that no part of it is read as an escape or a request."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    return re.sub(r"^\.", r"\\&.", " ".join(escaped.split()))


def _plain(text: str) -> str:
    """Markdown as plain text: a link becomes its words, code gets quotes."""
    return re.sub(r"`([^`]*)`", r'"\1"', re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text))


# --- bash -------------------------------------------------------------------------------------------------

COMPLETION = """\
# bash completion for flux-node-manager. Made by python -m doc.generate from the command line's parser. Do not edit.

# Prints the names that the running service knows. $1: jobs, nodes or types
_flux_node_manager_names()
{{
    local at site
    for ((at = 1; at < COMP_CWORD; at++)); do
        [[ ${{COMP_WORDS[at]}} == --config ]] || continue
        site=${{COMP_WORDS[at + 1]}}
        [[ $site == = ]] && site=${{COMP_WORDS[at + 2]}}
    done
    [[ -r ${{site/#\\~/$HOME}} ]] || return
    timeout 5 "${{COMP_WORDS[0]}}" names "$1" --config "${{site/#\\~/$HOME}}" 2>/dev/null
}}

_flux_node_manager()
{{
    local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}} at verb= words= options
    COMPREPLY=()
    for ((at = 1; at < COMP_CWORD; at++)); do
        case ${{verb:+$verb }}${{COMP_WORDS[at]}} in
            {verbs}) verb+=${{verb:+ }}${{COMP_WORDS[at]}} ;;
        esac
    done
    case $verb:$before in
{choices}
    esac
    case $before in
        {directories})
            compopt -o filenames
            mapfile -t COMPREPLY < <(compgen -d -- "$current")
            return ;;
        --slots)
            compopt -o nospace
            mapfile -t COMPREPLY < <(compgen -W "$(_flux_node_manager_names types)" -S = -- "$current")
            return ;;
        --type)
            mapfile -t COMPREPLY < <(compgen -W "$(_flux_node_manager_names types)" -- "$current")
            return ;;
        {values})
            return ;; # usually a file: bash completes it
    esac
    case $verb in
{cases}
    esac
    if [[ $current == -* ]]; then
        words=$options
    elif [[ $verb == explain ]]; then
        case $before in
            job | node | type | ensemble) words=$(_flux_node_manager_names "${{before}}s") ;;
        esac
    elif [[ $verb == hold || $verb == release || $verb == retire ]]; then
        words=$(_flux_node_manager_names nodes)
    elif [[ $verb == data-safe || $verb == expand ]]; then
        words=$(timeout 5 flux jobs -no '{{id}}' 2>/dev/null)
    fi
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
}}

complete -o default -F _flux_node_manager flux-node-manager
"""


def bash_completion(parser: Parser) -> str:
    parsers = dict(_parsers("", parser))
    options = [action for it in parsers.values() for action in it.options()]
    directories = _names(option for option in options if option.metavar == "DIR")
    values = _names(option for option in options if option.nargs != 0)
    return COMPLETION.format(
        directories=_pattern(directories),
        choices="\n".join(line for name, it in parsers.items() for line in _choices(name, it)),
        values=_pattern([name for name in values if name not in (*directories, "--slots", "--type")]),
        verbs=_pattern([_quoted(name) for name in parsers if name]),
        cases="\n".join(_case(name, it) for name, it in parsers.items()),
    )


def _parsers(name: str, parser: Parser) -> Iterator[tuple[str, Parser]]:
    """The parser and those of its verbs, each by its words, such as ``ensemble run``."""
    yield name, parser
    for verb, inner in _verbs_of(parser):
        yield from _parsers(f"{name} {verb}".strip(), inner)


def _case(name: str, parser: Parser) -> str:
    """The words and the options that may follow a verb."""
    words = [verb for verb, _ in _verbs_of(parser)]
    words += [str(choice) for action in parser.arguments() for choice in action.choices or ()]
    shown = f' words="{" ".join(words)}"' if words else ""
    return f'        {_quoted(name)}) options="{" ".join(_names(parser.options()))}"{shown} ;;'


def _choices(name: str, parser: Parser) -> Iterator[str]:
    """A case for each option of a verb that takes one of a few words."""
    for option in parser.options():
        if option.choices:
            words = " ".join(str(choice) for choice in option.choices)
            cases = _pattern([f'"{name}:{it}"' for it in option.option_strings])
            yield f'        {cases}) mapfile -t COMPREPLY < <(compgen -W "{words}" -- "$current"); return ;;'


def _quoted(name: str) -> str:
    return name if name.isidentifier() or name.replace("-", "").isidentifier() else f'"{name}"'


def _names(options: Iterable[argparse.Action]) -> list[str]:
    return sorted({name for option in options for name in option.option_strings})


def _pattern(words: Sequence[str]) -> str:
    """The alternatives of a shell case."""
    return " | ".join(words)
