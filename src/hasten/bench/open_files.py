"""A connection is an open file: too low a limit would make errors of the client's that look like the server's."""

from __future__ import annotations

import resource

_OTHERS = 64  # files that a client has open besides its connections


def allow_connections(num_wanted: int) -> int:
    """Raise the process's own limit on open files as far as needed and allowed; returns how many connections it gives."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = num_wanted + _OTHERS
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return num_wanted
    soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(1, soft - _OTHERS)
