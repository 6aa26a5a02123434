"""A slow, obvious SGLang with a radix tree: nodes are objects with a dictionary of children, and tokens are spelt out.

Written from the rules and from SGLang's source (`radix_cache.py`, `schedule_policy.py`, `schedule_batch.py`, and what
allocates), beside `slow_simulator`, whose `sglang` and loop it uses. What is not said here is as there.

The tree
    A node holds pages of tokens, at least one, that follow those of its parent; children are known by their first page.
    A look-up goes down from the root as far as pages are the same, and a node of which only the first part is found is
    split there. Putting a sequence in looks it up and adds a leaf for what is not there. Both touch every node on the
    way, one that is split too. Locking a node locks all above it. Room is made by dropping leaves without a
    lock, the one touched longest ago first, whole, until there is enough.

`sglang` with `prefix_caching`
    Before a batch is formed, whose prompt was computed in the last iteration puts all full pages of it into the tree,
    in order of admission, then who is in the middle of one; pages that were there already it has no copy of any more.
    Each locks the last node, in place of the one before. Whoever is done puts all full pages that are computed into
    the tree, before that, and holds nothing any more. Whoever is retracted only lets go.
    Whenever it is asked whether the next in line fits, it is looked up: full pages of all but its last token. It has to
    fit without what is found, beside everything but free pages and pages without a lock, of which those that are found
    for it do not count. Admitted, it locks the node found and computes the rest.
    Room is made once the prompts of an iteration are settled, and before a decode; while that is not enough
    somebody is retracted, and room is made for 20 tokens of each of those left, and again for the decode.
    Memory held is what is locked, and pages of running requests that are not in the tree.
"""

import math
from itertools import count
from typing import Any

from slow_prefix_cache import WithTurns, spelt
from slow_simulator import Request, Sglang

from kvplan.simulation.requests import Requests

Page = tuple[Any, ...]


class Node:
    """Pages that follow those of the parent."""

    def __init__(self, parent: "Node | None", pages: list[Page], touched: int) -> None:
        self.parent = parent
        self.pages = pages
        self.touched = touched
        self.locks = 0
        self.children: dict[Page, Node] = {}


class Tree:
    def __init__(self) -> None:
        self.clock = count()
        self.root = Node(None, [], 0)

    def way_up(self, node: Node) -> list[Node]:
        """A node and all above it but the root."""
        way = []
        while node.parent is not None:
            way.append(node)
            node = node.parent
        return way

    def nodes(self) -> list[Node]:
        found, below = [], list(self.root.children.values())
        while below:
            node = below.pop()
            found.append(node)
            below += node.children.values()
        return found

    def size(self, locked: bool) -> int:
        return sum(len(node.pages) for node in self.nodes() if (node.locks > 0) is locked)

    def look_up(self, pages: list[Page]) -> tuple[int, Node]:
        """How many leading pages are there, and the node that ends with them."""
        found, node, now = 0, self.root, next(self.clock)
        while found < len(pages) and pages[found] in node.children:
            child = node.children[pages[found]]
            child.touched = now
            same = 0
            while same < len(child.pages) and pages[found + same : found + same + 1] == [child.pages[same]]:
                same += 1
            found += same
            if same < len(child.pages):
                return found, self.split(child, same)
            node = child
        return found, node

    def split(self, node: Node, pages: int) -> Node:
        """Put the first pages of a node into one above it."""
        upper = Node(node.parent, node.pages[:pages], next(self.clock))
        upper.locks = node.locks
        node.parent.children[upper.pages[0]] = upper
        node.parent, node.pages = upper, node.pages[pages:]
        upper.children[node.pages[0]] = node
        return upper

    def put(self, pages: list[Page]) -> Node:
        """Have a sequence in the tree; the node that ends with it."""
        found, node = self.look_up(pages)
        if found < len(pages):
            leaf = Node(node, pages[found:], next(self.clock))
            node.children[pages[found]] = leaf
            node = leaf
        return node

    def lock(self, node: Node, change: int) -> None:
        for one in self.way_up(node):
            one.locks += change

    def drop_a_leaf(self) -> bool:
        """False where there is none without a lock."""
        leaves = [node for node in self.nodes() if not node.children and node.locks == 0]
        if not leaves:
            return False
        oldest = min(leaves, key=lambda node: node.touched)
        del oldest.parent.children[oldest.pages[0]]
        return True


class Radix(WithTurns, Sglang):
    def __init__(self, requests: Requests, *rest: Any) -> None:
        super().__init__(requests, *rest)
        self.tree = Tree()
        self.tokens = [spelt(requests, request) for request in self.all]
        self.node = [self.tree.root for _ in self.all]  # locked by each request
        self.in_tree = [True for _ in self.all]  # nothing of it waits to be put there

    # -- memory

    def pages(self, request: Request, tokens: int) -> list[Page]:
        """The full pages in so many tokens."""
        all_tokens = self.tokens[request.index]
        return [
            tuple(all_tokens[at : at + self.block]) for at in range(0, tokens - self.block + 1, self.block)
        ]

    def protected(self, request: Request) -> int:
        """Pages that it has in the tree."""
        return sum(len(node.pages) for node in self.tree.way_up(self.node[request.index]))

    def own(self) -> int:
        """Pages of running requests outside the tree."""
        return sum(request.blocks - self.protected(request) for request in self.resident)

    def free_blocks(self) -> int:
        return self.usable_blocks - self.tree.size(True) - self.tree.size(False) - self.own()

    def make_room(self, tokens: int) -> None:
        while self.free_blocks() * self.block < tokens and self.tree.drop_a_leaf():
            pass

    def kv_held(self, batch: list[Request]) -> int:
        self.cached_per_iteration.append(self.block * self.tree.size(False))
        return self.block * (self.tree.size(True) + self.own())

    # -- what is put into the tree

    def hold(self, request: Request, node: Node) -> None:
        self.tree.lock(node, 1)
        self.tree.lock(self.node[request.index], -1)
        self.node[request.index] = node

    def remember_prompts(self) -> None:
        for request in self.resident:
            if not self.in_tree[request.index]:
                self.hold(request, self.tree.put(self.pages(request, request.computed)))
                self.in_tree[request.index] = True

    def is_answered(self, request: Request) -> None:
        self.tree.put(self.pages(request, request.computed))
        self.hold(request, self.tree.root)
        super().is_answered(request)

    # -- the scheduler

    def compute_prompts(self) -> None:
        self.remember_prompts()
        self.budget = self.limit
        running = [request for request in self.resident if request is not self.begun]
        whole = 0
        if self.begun is not None:
            whole += self.remaining(self.begun)
            self.compute_some(self.begun)
        while self.queue and self.budget > 0 and len(self.resident) < self.seats:
            request = self.queue[0]
            sequence = request.input_tokens + request.generated
            found, node = self.tree.look_up(self.pages(request, sequence - 1))
            idle = sum(len(one.pages) for one in self.tree.way_up(node) if one.locks == 0)
            room = self.free_blocks() + self.tree.size(False) - idle
            kept = self.ratio * sum(self.remaining(other) for other in running) + whole
            if sequence - found * self.block + self.remaining(request) > room * self.block - kept:
                break
            self.queue.pop(0)
            self.resident.append(request)
            self.hold(request, node)
            self.begin_with(request, found * self.block)
            whole += self.remaining(request)
            self.compute_some(request)
        self.make_room(0)

    def compute_some(self, request: Request) -> None:
        super().compute_some(request)
        self.in_tree[request.index] = False

    def decode(self) -> None:
        self.budget = math.inf
        if not self.resident:
            self.ratio = self.first_ratio
            return
        retracted = False
        self.make_room(self.taken())
        while self.free_blocks() * self.block < self.taken():
            victim = max(self.decoding(), key=self.goes_first)
            self.hold(victim, self.tree.root)
            self.retract(victim)
            retracted = True
            self.make_room(20 * len(self.decoding()))
            self.make_room(self.taken())
        for request in self.decoding():
            request.blocks = self.blocks_after(request)
            self.grant(request, 1)
        self.move_ratio(self.decoding(), retracted)

    def taken(self) -> int:
        """Tokens of the pages that a decode takes."""
        return self.block * sum(self.blocks_after(request) - request.blocks for request in self.decoding())
