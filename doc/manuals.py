# ruff: noqa: INP001 - a folder of pages, not a package
"""Write the man pages and the bash completion from the command line's parser and the settings' models.

``doc/generate.py`` calls this. Sources: man-pages(7), groff_man(7), bash(1) on programmable completion.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

PROGRAM = "flux-node-manager"

EXIT_STATUS = re.compile(r"(\d+) ([^;]+)")


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of a section: its meaning, its allowed values and its default, in Markdown."""

    key: str
    meaning: str
    written_as: str
    default: str


@dataclass(frozen=True, slots=True)
class Verb:
    name: str
    meaning: str
    options: tuple[argparse.Action, ...] = ()


# --- reading the parser -----------------------------------------------------------------------------------


def verbs_of(parser: argparse.ArgumentParser, meanings: Mapping[str, str]) -> tuple[Verb, ...]:
    """The parser's verbs, which are subparsers or the choices of an argument called ``verb``."""
    for action in parser._actions:  # noqa: SLF001 - argparse has no public way to list them
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            return tuple(
                Verb(name, meanings.get(name) or sub.description or "", tuple(_options(sub)))
                for name, sub in action.choices.items()
            )
        if action.dest == "verb" and action.choices:
            return tuple(Verb(name, meanings[name]) for name in action.choices)
    return ()


def _options(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    yield from (action for action in parser._actions if action.option_strings)  # noqa: SLF001


def _arguments(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The positional arguments except the verb."""
    for action in parser._actions:  # noqa: SLF001
        subparsers = isinstance(action, argparse._SubParsersAction)  # noqa: SLF001
        if not (action.option_strings or subparsers or action.dest == "verb"):
            yield action


# --- flux-node-manager(1) ---------------------------------------------------------------------------------


def command_page(parser: argparse.ArgumentParser, meanings: Mapping[str, str]) -> str:
    lines = [_head(PROGRAM, 1, "cloud nodes for a Flux instance")]
    lines += [".SH SYNOPSIS", f".B {_text(PROGRAM)}", SYNOPSIS]
    lines += [".SH DESCRIPTION", _text(parser.description or ""), ".PP", *DESCRIPTION, ".SH VERBS"]
    for verb in verbs_of(parser, meanings):
        lines += [".TP", rf"\fB{_text(verb.name)}\fR", _text(verb.meaning), *_indented(verb.options)]
    for title, actions in (("ARGUMENTS", _arguments(parser)), ("OPTIONS", _options(parser))):
        shown = [line for action in actions for line in _item(action)]
        lines += [f".SH {title}", *shown] if shown else []
    lines.append(".SH EXIT STATUS")
    for status, meaning in EXIT_STATUS.findall(parser.epilog or ""):
        lines += [".TP", rf"\fB{status}\fR", _text(meaning.strip())]
    return _page([*lines, *COMMAND_FOOT])


def _indented(options: Sequence[argparse.Action]) -> list[str]:
    items = [line for action in options for line in _item(action)]
    return [".RS", *items, ".RE"] if items else []


def _item(action: argparse.Action) -> Iterator[str]:
    value = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    takes_value = action.nargs != 0
    names = ", ".join(rf"\fB{_text(name)}\fR" for name in action.option_strings)
    yield ".TP"
    yield names + (rf" \fI{_text(value)}\fR" if takes_value and names else "") or rf"\fI{_text(value)}\fR"
    yield _text((action.help or "").replace("%(prog)s", PROGRAM))


SYNOPSIS = r"[\fIVERB\fR] \fB\-\-config\fR \fISITE.INI\fR [\fIOPTIONS\fR]"

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

_flux_node_manager()
{{
    local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}} word
    COMPREPLY=()
    case $before in
        {directories})
            compopt -o filenames
            mapfile -t COMPREPLY < <(compgen -d -- "$current")
            return ;;
        {values})
            return ;; # usually a file: bash completes it
    esac
    if [[ $current == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "{options}" -- "$current")
        return
    fi
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case $word in
            {verbs}) return ;;
        esac
    done
    mapfile -t COMPREPLY < <(compgen -W "{words}" -- "$current")
}}

complete -o default -F _flux_node_manager flux-node-manager
"""


def bash_completion(parser: argparse.ArgumentParser, meanings: Mapping[str, str]) -> str:
    verbs = verbs_of(parser, meanings)
    options = [*_options(parser), *(option for verb in verbs for option in verb.options)]
    names = [verb.name for verb in verbs]
    directories = [option for option in options if option.metavar == "DIR"]
    values = [option for option in options if option.nargs != 0 and option not in directories]
    return COMPLETION.format(
        directories=_pattern(_names(directories)),
        values=_pattern(_names(values)),
        options=" ".join(_names(options)),
        verbs=_pattern(names),
        words=" ".join(names),
    )


def _names(options: Sequence[argparse.Action]) -> list[str]:
    return sorted({name for option in options for name in option.option_strings})


def _pattern(words: Sequence[str]) -> str:
    """The alternatives of a shell case; a pattern that never matches if there are none."""
    return " | ".join(words) or "''"
