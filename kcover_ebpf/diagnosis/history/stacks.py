"""Compares stacks as sets of code words: known waits of healthy times, and ranks that wait apart from the others."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from kcover_ebpf.tunables.diagnosis import SAME_STACK_SHARE
from kcover_ebpf.tunables.sampling import REMEMBERED_STACKS

_ANSWERED = 1024
"""Cached comparisons of a stack with all remembered ones (0.5 ms each): a rank and its loaders have a few dozen."""

_BUILD = re.compile(r"~[0-9a-f]{8}\+(?=[0-9a-f]+$)")
Key = TypeVar("Key")
Stack = tuple[str, ...]


def similarity(stack: Stack, other_stack: Stack) -> float:
    """Share of code words that two stacks have in common, 0 to 1."""
    left, right = set(stack), set(other_stack)
    return len(left & right) / len(left | right) if left or right else 0.0


def unbuilt(stack: Stack) -> Stack:
    """The words without build ids, for readers that compare the stacks of one moment, or have older ones."""
    return tuple(_BUILD.sub("+", word) for word in stack)


_INTERPRETER = ("python", "libpython")
# libraries that every wait goes through, whatever called them
PLUMBING = ("libc.", "libc-", "libpthread", "libstdc++", "ld-", "[vdso]", *_INTERPRETER)


def waits_in(stack: Stack) -> str | None:
    """The library that waits: the innermost one that is neither system nor interpreter; None if there is none.

    A wait in Python's own locks has none on the stack.
    """
    modules = (word.rpartition("+")[0] for word in unbuilt(stack))
    return next((name for name in modules if not name.startswith(PLUMBING)), None)


class KnownWaits:
    """Stacks of waits that ended by themselves: the ranks of a job run the same program, so they share one memory."""

    def __init__(self) -> None:
        self._stacks: list[Stack] = []
        self._answers: dict[Stack, bool] = {}

    def learn(self, stack: Stack) -> None:
        """Remember a wait that ended by itself; the oldest ones are dropped when there are many."""
        if stack and not self.knows(stack):
            self._stacks = [*self._stacks[-(REMEMBERED_STACKS - 1) :], stack]
            self._answers.clear()

    def knows(self, stack: Stack) -> bool:
        """True if such a wait ended by itself before."""
        # every process of the job is checked at each pass, and its stack does not change while it hangs
        if stack not in self._answers:
            if len(self._answers) >= _ANSWERED:
                self._answers.clear()
            self._answers[stack] = any(
                _is_same_wait(stack, known_stack) for known_stack in self._stacks
            )
        return self._answers[stack]

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """All remembered stacks, oldest first."""
        return tuple(self._stacks)

    @property
    def count(self) -> int:
        """Number of different remembered waits."""
        return len(self._stacks)


def _is_same_wait(stack: Stack, known_stack: Stack) -> bool:
    """True if the stacks are alike, unless the known one ran Python where the other sleeps.

    In a program in Python most words are the interpreter's, so a rank that computed looks like one that waits for a
    lock.
    """
    is_alike = similarity(stack, known_stack) >= SAME_STACK_SHARE
    return is_alike and (_runs_python(stack) or not _runs_python(known_stack))


def _runs_python(stack: Stack) -> bool:
    """True if the innermost word is the interpreter's: whoever sleeps does so in the C library."""
    return stack[0].startswith(_INTERPRETER)


def groups(stacks: Mapping[Key, Stack]) -> list[list[Key]]:
    """Owners of similar stacks, largest group first; each group is compared with its first member."""
    found: list[tuple[Stack, list[Key]]] = []
    for key, stack in stacks.items():
        for first, members in found:
            if similarity(first, stack) >= SAME_STACK_SHARE:
                members.append(key)
                break
        else:
            found.append((stack, [key]))
    return sorted((members for _, members in found), key=len, reverse=True)


def outliers(stacks: Mapping[Key, Stack], known: Collection[Key]) -> list[Key]:
    """Owners whose wait is neither known nor shared by the majority. `known`: owners whose wait ended by itself before.

    A known wait ends by itself, so an unknown one is odd if others are known, unless most are in it: they are in a rare
    collective. Among unknown waits only a majority shows which rank differs; among known ones none does.
    """
    unknown = [key for key in stacks if key not in known]
    if 2 * len(unknown) < len(stacks):
        return unknown
    apart = minority(groups(stacks)) or _outside_a_library(stacks)
    return [key for key in apart if key not in known]


def _outside_a_library(stacks: Mapping[Key, Stack]) -> list[Key]:
    """The one rank that waits in no library while all others wait in the same one, even if there are only two ranks."""
    libraries = {key: waits_in(stack) for key, stack in stacks.items()}
    outside = [key for key, library in libraries.items() if library is None]
    return outside if len(outside) == 1 and len(set(libraries.values())) == 2 else []


def minority(ordered: Sequence[list[Key]]) -> list[Key]:
    """Members of all groups but the largest; empty if there is one group, or no single largest one."""
    if len(ordered) < 2 or len(ordered[0]) == len(ordered[1]):
        return []
    return [key for group in ordered[1:] for key in group]
