"""What requests have in common: streams of tokens that branch off each other, and turns that answer each other."""

from dataclasses import dataclass

import numpy as np

from kvplan.model import FloatArray, IntArray


@dataclass(frozen=True)
class Prefixes:
    """A tree of streams of tokens; the tokens of a request are those of a stream, and of all before it.

    A stream begins where the one that it branches off from ends. One that a request ends in has no end of its own:
    prompts and generated tokens of one request after the other go on in it, each knowing all that came before.

    Examples
    --------
    Two requests that share 30 tokens, and one that shares nothing.

    >>> some = Prefixes(stream=np.array([1, 2, 3]), parent=np.array([-1, 0, 0, -1]), end_tokens=np.array([30, 0, 0, 0]))
    >>> some.begin_tokens.tolist()
    [0, 30, 30, 0]
    """

    # shape (n_requests,): the one that each request ends in; nothing branches off from it, and no two requests
    # are in it at a time
    stream: IntArray
    # shape (n_streams,): that each stream branches off from, one that stands before it; -1: it begins at the
    # first token
    parent: IntArray
    # shape (n_streams,): tokens from the first one of all up to where others branch off; no prompt in a branch is
    # shorter
    end_tokens: IntArray

    @property
    def begin_tokens(self) -> IntArray:
        """Tokens before each stream; shape (n_streams,)."""
        begin: IntArray = np.where(self.parent < 0, 0, self.end_tokens[self.parent])
        return begin


def strangers(count: int) -> Prefixes:
    """Return the prefixes of so many requests that have nothing in common."""
    each = np.arange(count)
    return Prefixes(each, np.full(count, -1), np.zeros(count, dtype=np.int64))


@dataclass(frozen=True)
class Turns:
    """Requests that come because another one was answered, think time after its completion."""

    # shape (n_requests,): what the completion of each request brings; -1: nothing. It stands behind all that come
    # unasked.
    following: IntArray
    # shape (n_requests,): from the completion (or from giving up) of each request to the arrival that it brings,
    # seconds
    think_s: FloatArray
    # shape (n_requests,): what comes where a request is given up, one of those that would have followed in time;
    # -1: nothing
    instead: IntArray


def nothing_follows(count: int) -> Turns:
    """Return the turns of so many requests that bring nobody."""
    nobody = np.full(count, -1)
    return Turns(nobody, np.zeros(count), nobody)
