"""The environment variables that a skill may not set for the commands of an agent.

Every command gets the variables of the skills, including commands that a person allowed long ago and that have nothing
to do with a skill. So a skill may set keys and settings of its own service. It may not set what makes a loader, a
shell, an interpreter or a common tool load other code, or what sends their traffic elsewhere.
"""

from __future__ import annotations

import re


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_REFUSED = frozenset(
    _words("""
    GCONV_PATH LOCPATH NLSPATH TZDIR HOSTALIASES RES_OPTIONS LOCALDOMAIN GETCONF_DIR TERMCAP
    ENV IFS PS0 PS1 PS2 PS3 PS4 PROMPT_COMMAND SHELL SHELLOPTS CDPATH FPATH ZDOTDIR PATH PATHEXT COMSPEC MANPATH HOME
    USER LOGNAME PWD OLDPWD TMP TEMP TMPDIR EDITOR VISUAL FCEDIT BROWSER INPUTRC DISPLAY WAYLAND_DISPLAY XAUTHORITY
    CLASSPATH VIRTUAL_ENV EXINIT MFLAGS MAKEFILES CC CXX CPP LD AR CFLAGS CXXFLAGS CPPFLAGS LDFLAGS CPATH LIBRARY_PATH
    C_INCLUDE_PATH ACLOCAL_PATH GOFLAGS GOPATH GOROOT GOPROXY GOENV GOBIN GOTOOLCHAIN GOSUMDB GOPRIVATE GOVCS
    GONOSUMDB GONOPROXY GOINSECURE GOCACHE GNUPGHOME KUBECONFIG DOCKER_CONFIG DOCKER_HOST AWS_CONFIG_FILE
    AWS_SHARED_CREDENTIALS_FILE BOTO_CONFIG WGETRC CURL_HOME NETRC PSQLRC MYSQL_HOME RIPGREP_CONFIG_PATH
    """)
)
_PREFIXES = _words(
    """
    LD_ DYLD_ GLIBC_ MALLOC_ TERMINFO BASH XDG_ LESS SUDO_ DBUS_ NODE_ PYTHON PERL RUBY GEM_ BUNDLE_ PHP LUA_ TCL JAVA_
    JDK_ _JAVA_ DOTNET_ CORECLR_ COR_ R_ JULIA_ DENO_ BUN_ ERL_ ELIXIR_ GUILE_ EMACS VIM CONDA_ RUST CARGO_ NPM_ YARN_
    PNPM_ COREPACK_ PIP_ PIPX_ UV_ POETRY_ HOMEBREW_ NVM_ CMAKE_ PKG_CONFIG GIT_ SSH_ GPG_ ANSIBLE_ TAR_ RSYNC_ FZF_
    BAT_ SYSTEMD_ SSL OPENSSL_ CURL_SSL OPENCLAW_
    """
)
_ENDINGS = _words(
    """
    PAGER MAKEFLAGS _OPTIONS _OPTS _FLAGS _WRAPPER _ASKPASS _PRELOAD _STARTUP _PROXY CA_BUNDLE CA_CERT CA_CERTS
    _TLS_REJECT_UNAUTHORIZED
    """
)
_CREDENTIALS = ("_TOKEN", "_KEY", "_SECRET", "_PASSWORD")
_HARMLESS = frozenset(_words("NODE_ENV GIT_AUTHOR_NAME GIT_AUTHOR_EMAIL GIT_COMMITTER_NAME GIT_COMMITTER_EMAIL"))


def is_refused_variable(name: str, value: str = "") -> bool:
    """Whether a skill may not set a variable. A name or value that no program can be given is refused as well."""
    if not _NAME.fullmatch(name) or "\0" in value:
        return True
    upper = name.upper()
    if upper in _HARMLESS or (upper.endswith(_CREDENTIALS) and not upper.startswith("OPENCLAW_")):
        return False
    return upper in _REFUSED or upper.startswith(_PREFIXES) or upper.endswith(_ENDINGS)


def refused_variable(name: str) -> str:
    """Return the sentence for the person who set the variable."""
    return (
        f"{name[:80]!r} is not set, because it could change what other commands run or whom they trust; a skill may "
        "set the keys and settings of its own service. Write others into the command itself"
    )
