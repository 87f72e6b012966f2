"""What git shows to which host: the Secrets that the Runtime names in `spec.git.credentials`.

A credential goes to its own host only, whatever URL a Run asks for. It is in no argument, no variable and no file that
user code can read: git is told where the Secret is mounted, and reads it when it is asked. Next: `git.py`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult

_SSH: Final = "ssh -oBatchMode=yes -oConnectTimeout=10 -oPasswordAuthentication=no"
_HELPER: Final = (
    '!get() {{ test "$1" = get || return 0; echo "username=$(cat {folder}/username 2>/dev/null || echo git)"; '
    'echo "password=$(cat {folder}/password)"; }}; get'
)
"""A credential helper of git (gitcredentials(7)): asked for the named host only, once the server wants a credential."""


def host_of(parts: SplitResult) -> str:
    """The host as `spec.git.credentials[].host` writes it: with the port when the URL has one."""
    return f"{parts.hostname}:{parts.port}" if parts.port is not None else parts.hostname or ""


class GitAuth:
    """`folders`: host -> where its Secret is mounted."""

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self._folders = folders

    @classmethod
    def of(cls, hosts: str, mounted: Path) -> "GitAuth":
        """From the comma list of hosts, the nth of which has the folder `<n>` in `mounted`."""
        names = [host.strip().lower() for host in hosts.split(",") if host.strip()]
        return cls({host: mounted / str(number) for number, host in enumerate(names)})

    def environment(self, parts: SplitResult) -> dict[str, str]:
        """Variables for git; what the Secret holds now is looked at now, so that a new one counts at once."""
        folder = self._folders.get(host_of(parts))
        settings: list[tuple[str, str]] = []
        if parts.scheme == "https" and folder is not None:
            site = f"https://{host_of(parts)}"
            if (folder / "password").is_file():
                settings.append((f"credential.{site}.helper", _HELPER.format(folder=_quoted(folder))))
            if (folder / "ca.crt").is_file():
                settings.append((f"http.{site}/.sslCAInfo", str(folder / "ca.crt")))
        env = {"GIT_CONFIG_COUNT": str(len(settings)), "GIT_SSH_COMMAND": _ssh(folder)}
        for number, (key, value) in enumerate(settings):
            env |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
        return env

    def explain(self, host: str) -> str:
        """What there is for a host, for a person whose fetch failed."""
        folder = self._folders.get(host)
        if folder is None:
            return f"the Runtime's spec.git.credentials has none for {host}"
        held = sorted(key for key in ("password", "ssh-privatekey") if (folder / key).is_file())
        return f"its Secret has {' and '.join(held)}" if held else "its Secret has neither password nor ssh-privatekey"


def _ssh(folder: Path | None) -> str:
    """With known_hosts the server must be one of them; without, whoever answers is taken (the first time each time)."""
    command = _SSH
    if folder is not None and (folder / "ssh-privatekey").is_file():
        command += f" -oIdentitiesOnly=yes -i {_quoted(folder / 'ssh-privatekey')}"
    if folder is not None and (folder / "known_hosts").is_file():
        known = _quoted(folder / "known_hosts")
        return f"{command} -oStrictHostKeyChecking=yes -oUserKnownHostsFile={known} -oGlobalKnownHostsFile=/dev/null"
    return f"{command} -oStrictHostKeyChecking=accept-new -oUserKnownHostsFile=/dev/null -oLogLevel=ERROR"


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "'\\''") + "'"
