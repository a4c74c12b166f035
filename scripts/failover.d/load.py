"""Clients of the relay: writers and readers that keep their pace whatever the relay does, and all their requests."""

import asyncio
import hashlib
import json
import random
import time
from dataclasses import dataclass, field

import websockets
from coincurve import PrivateKey

WRITERS, WRITES_A_SECOND = 10, 100
READERS, QUESTIONS_A_SECOND = 25, 50
# A request without an answer for this time is given up, and its connection is closed.
PATIENCE_S = 20
AUTHORS = 120


@dataclass
class Request:
    kind: str
    sent: float
    group: int | None = None
    ended: float | None = None
    # ok, refused, or lost: the connection has ended, or the request was given up
    outcome: str = "open"
    words: str = ""
    incomplete: bool = False
    wanted: str | None = None
    found: int = 0

    def end(self, outcome, words=""):
        self.ended, self.outcome, self.words = time.time(), outcome, words

    @property
    def took(self):
        return self.ended - self.sent


@dataclass
class Author:
    key: PrivateKey
    name: str
    group: int | None = None


@dataclass
class Load:
    url: str
    requests: list = field(default_factory=list)
    acknowledged: list = field(default_factory=list)
    authors: list = field(default_factory=list)
    stopped: bool = False
    # Each new number makes all clients connect anew, so that HAProxy spreads them again.
    epoch: int = 0

    def __post_init__(self):
        for number in range(AUTHORS):
            key = PrivateKey(hashlib.sha256(f"author {number}".encode()).digest())
            self.authors.append(Author(key, key.public_key_xonly.format().hex()))

    def start(self):
        tasks = [self.client(self.writes, WRITERS / WRITES_A_SECOND, number / WRITERS) for number in range(WRITERS)]
        tasks += [self.client(self.asks, READERS / QUESTIONS_A_SECOND, number / READERS) for number in range(READERS)]
        return [asyncio.create_task(task) for task in tasks]

    async def client(self, act, pause, offset):
        await asyncio.sleep(pause * offset)
        while not self.stopped:
            pending = {}
            try:
                async with websockets.connect(self.url, open_timeout=5, close_timeout=1, ping_interval=None,
                                              max_size=None) as socket:
                    reading = asyncio.create_task(self.read(socket, pending))
                    try:
                        await self.send(act, pause, socket, pending, reading)
                    finally:
                        reading.cancel()
                        await asyncio.gather(reading, return_exceptions=True)
            except (OSError, asyncio.TimeoutError, websockets.WebSocketException):
                await asyncio.sleep(0.25)
            for request in pending.values():
                request.end("lost", "no answer")

    async def send(self, act, pause, socket, pending, reading):
        """Sends a request after each pause, until the connection is to end."""
        due, epoch = time.time(), self.epoch
        while not self.stopped and not reading.done():
            if epoch == self.epoch:
                await act(socket, pending)
            elif not pending:
                return
            if any(time.time() - request.sent > PATIENCE_S for request in pending.values()):
                return
            due = max(due + pause, time.time() - 1)
            await asyncio.sleep(max(0, due - time.time()))

    def event(self):
        author = random.choice(self.authors)
        tags = [["t", f"topic{random.randrange(40)}"]]
        if self.acknowledged:
            tags.append(["e", random.choice(self.acknowledged)])
        body = [0, author.name, int(time.time()), 1, tags, f"{random.getrandbits(64):x} " * 20]
        text = json.dumps(body, separators=(",", ":"), ensure_ascii=False)
        identity = hashlib.sha256(text.encode()).digest()
        return author, {"id": identity.hex(), "pubkey": author.name, "created_at": body[2], "kind": 1, "tags": tags,
                        "content": body[5], "sig": author.key.sign_schnorr(identity).hex()}

    async def writes(self, socket, pending):
        author, event = self.event()
        request = Request("write", time.time(), author.group)
        pending[event["id"]] = request
        self.requests.append(request)
        await socket.send(json.dumps(["EVENT", event]))

    async def asks(self, socket, pending):
        author, name, wanted, group = random.choice(self.authors), f"{random.getrandbits(32):x}", None, None
        choice = random.random()
        if choice < 0.6 or not self.acknowledged:
            kind, query, group = "author", {"authors": [author.name], "limit": 20}, author.group
        elif choice < 0.8:
            # The newest events, because a failover would lose these first.
            wanted = random.choice(self.acknowledged[-500:])
            kind, query = "id", {"ids": [wanted]}
        else:
            kind, query = "wide", {"kinds": [1], "limit": 20}
        request = Request(kind, time.time(), group, wanted=wanted)
        pending[name] = request
        self.requests.append(request)
        await socket.send(json.dumps(["REQ", name, query]))

    async def read(self, socket, pending):
        async for text in socket:
            message = json.loads(text)
            request = pending.get(message[1])
            if request is None:
                continue
            match message[0]:
                case "OK":
                    del pending[message[1]]
                    request.end("ok" if message[2] else "refused", message[3])
                    if message[2]:
                        self.acknowledged.append(message[1])
                case "EVENT":
                    request.found += 1
                case "EOSE":
                    del pending[message[1]]
                    request.end("ok")
                    request.incomplete = request.wanted is not None and request.found == 0
                    await socket.send(json.dumps(["CLOSE", message[1]]))
                case "CLOSED":
                    del pending[message[1]]
                    request.end("refused", message[2])

    async def missing(self, url, ids):
        """The events among `ids` that the relay does not find."""
        missing = []
        async with websockets.connect(url, max_size=None) as socket:
            for at in range(0, len(ids), 100):
                part, found = ids[at:at + 100], set()
                while True:
                    await socket.send(json.dumps(["REQ", "all", {"ids": part, "limit": 100}]))
                    while True:
                        message = json.loads(await socket.recv())
                        if message[0] == "EVENT":
                            found.add(message[2]["id"])
                        else:
                            break
                    await socket.send(json.dumps(["CLOSE", "all"]))
                    if message[0] == "EOSE":
                        break
                    await asyncio.sleep(1)
                missing += [one for one in part if one not in found]
        return missing
