"""Lets the parts of a cluster die and hang, one after another, and measures what clients see. See ../failover."""

import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import psycopg

from load import Load
from machines import Cluster, run

STORE = ("postgres://hark:secret@coordinator-a.example,coordinator-b.example/hark"
         "?target_session_attrs=read-write&sslmode=disable&connect_timeout=3")
OPERATOR = STORE.replace("hark:secret", "postgres:secret")
START_S, HEAL_S = 180, 180
BEFORE_S, LEAST_S, MOST_S, STEADY_S = 6, 12, 90, 8
# Every refusal must come within Hark's time limit for the database, and some time for a busy computer.
REFUSED_WITHIN_S = 20


def note(words):
    print(f"{time.strftime('%H:%M:%S')} {words}", file=sys.stderr, flush=True)


def get(url, data=None):
    """The status and the text of a page; None without an answer."""
    try:
        with urllib.request.urlopen(url, data, timeout=2) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return None, ""


class Watch:
    """The reports of each Hark node's /healthz, of HAProxy and of each server's Patroni, with the times of changes."""

    def __init__(self, cluster):
        self.changes = {}
        for name in cluster.HARK:
            self.follow(f"healthz {name}", self.status, f"http://{name}.example:7777/healthz")
        for names in cluster.GROUPS.values():
            for name in names:
                self.follow(f"leader {name}", self.status, f"http://{name}.example:8008/primary")
        for name in cluster.HARK:
            self.follow(f"haproxy {name}", self.server, name)

    def follow(self, subject, look, what):
        self.changes[subject] = []

        async def loop():
            while True:
                state = await asyncio.to_thread(look, what)
                changes = self.changes[subject]
                if not changes or changes[-1][1] != state:
                    changes.append((time.time(), state))
                await asyncio.sleep(0.25)

        self.tasks = [*getattr(self, "tasks", []), asyncio.create_task(loop())]

    @staticmethod
    def status(url):
        return get(url)[0]

    @staticmethod
    def server(name):
        for line in get("http://balancer.example:8404/;csv")[1].splitlines():
            fields = line.split(",")
            if fields[:2] == ["nodes", name]:
                return fields[17].split()[0]
        return None

    def now(self, subject):
        return self.changes[subject][-1][1] if self.changes[subject] else None

    def story(self, subject, since, good):
        """When the subject stopped being good after `since`, and when it was good again, in seconds."""
        left = back = None
        for at, state in self.changes[subject]:
            if at < since:
                continue
            if state != good:
                left = at - since if left is None else left
            elif left is not None:
                back = at - since
        return left, back


class Drill:
    def __init__(self, folder, binary, server):
        self.cluster = Cluster(folder, binary, server)
        self.machines = self.cluster.machines
        self.folder = folder
        self.rows, self.faults, self.check = [], [], ""
        # Number of acknowledged events that were looked up after a fault so far.
        self.checked = 0

    def query(self, text, host="coordinator-a.example,coordinator-b.example"):
        with psycopg.connect(f"host={host} user=postgres password=secret dbname=hark target_session_attrs=read-write "
                             "connect_timeout=3", autocommit=True) as connection:
            answer = connection.execute(text)
            return answer.fetchall() if answer.description else []

    def members(self, group):
        for name in self.cluster.GROUPS[group]:
            status, text = get(f"http://{name}.example:8008/cluster")
            if status == 200:
                return json.loads(text)["members"]
        return []

    def leader(self, group):
        for member in self.members(group):
            if member["role"] == "leader":
                return self.machines[member["name"]]
        raise RuntimeError(f"group {group} has no leader")

    def standby(self, group):
        leader = self.leader(group).name
        return self.machines[next(name for name in self.cluster.GROUPS[group] if name != leader)]

    def etcd_leader(self):
        for name in self.cluster.ETCD:
            status, text = get(f"http://{name}.example:2379/v3/maintenance/status", data=b"{}")
            answer = json.loads(text) if status == 200 else {}
            if "leader" in answer and answer["leader"] == answer["header"]["member_id"]:
                return self.machines[name]
        raise RuntimeError("etcd has no leader")

    def is_healthy(self, group):
        roles = sorted((member["role"], member["state"]) for member in self.members(group))
        return roles == [("leader", "running"), ("sync_standby", "streaming")]

    async def until(self, words, condition, limit):
        ends = time.time() + limit
        while time.time() < ends:
            try:
                if await asyncio.to_thread(condition):
                    return
            except (OSError, RuntimeError, psycopg.Error):
                pass
            await asyncio.sleep(0.5)
        raise RuntimeError(f"waited {limit} s in vain until {words}")

    async def start(self):
        note("starting etcd and Patroni")
        self.cluster.start()
        for group in self.cluster.GROUPS:
            await self.until(f"group {group} has a leader and a standby", lambda: self.is_healthy(group), START_S)
            note(f"group {group} has a leader and a standby")
        workers = "SELECT count(*) FROM pg_dist_node WHERE noderole = 'primary' AND isactive AND groupid > 0"
        await self.until("the workers are registered", lambda: self.query(workers) == [(2,)], START_S)
        for text in ("CREATE ROLE hark LOGIN PASSWORD 'secret'", "GRANT CREATE ON DATABASE hark TO hark",
                     "GRANT EXECUTE ON FUNCTION pg_catalog.recover_prepared_transactions() TO hark"):
            self.query(text)
        self.cluster.start_hark(STORE)
        self.cluster.start_haproxy()
        self.watch = Watch(self.cluster)
        await self.until("HAProxy has both nodes", self.all_up, START_S)
        note("the Hark nodes serve")

    def all_up(self):
        return all(self.watch.now(f"haproxy {name}") == "UP" and self.watch.now(f"healthz {name}") == 200
                   for name in self.cluster.HARK)

    def place_authors(self):
        """Notes the group of each author's shard."""
        for author in self.load.authors:
            text = f"""SELECT groupid FROM pg_dist_placement WHERE shardid =
                get_shard_id_for_distribution_column('hark_nostr.record', decode('{author.name}', 'hex'))"""
            author.group = self.query(text)[0][0]

    async def fault(self, name, group, inject, machine):
        """Injects a fault, waits until the writes go on steadily, makes the cluster whole again, and notes a row."""
        self.load.epoch += 1
        await asyncio.sleep(2)
        begin = time.time()
        await asyncio.sleep(BEFORE_S)
        resets = sum(len(watchdog.resets) for watchdog in self.cluster.watchdogs.values())
        note(f"{name} ({machine.name})")
        at = time.time()
        await asyncio.to_thread(inject)
        await asyncio.sleep(LEAST_S)
        while time.time() - at < MOST_S and not self.is_steady(machine):
            await asyncio.sleep(0.5)
        seen = time.time()
        resets = sum(len(watchdog.resets) for watchdog in self.cluster.watchdogs.values()) - resets
        machine.boot()
        for one in self.cluster.ETCD:
            self.machines[one].boot()
        healed = None
        try:
            for one in self.cluster.GROUPS:
                await self.until(f"group {one} is whole", lambda: self.is_healthy(one), HEAL_S)
            await self.until("both nodes are up", self.all_up, HEAL_S)
            healed = time.time() - seen
        except RuntimeError as error:
            self.faults.append(f"{name}: {error}")
            note(str(error))
        # Requests that were sent before the repair may still wait.
        await asyncio.sleep(3)
        # These include the events from just before the fault, which a failover would lose first.
        end = len(self.load.acknowledged)
        ids, self.checked = self.load.acknowledged[self.checked:end], end
        lost = set()
        for node in self.cluster.HARK:
            lost |= set(await self.load.missing(f"ws://{node}.example:7777", ids))
        self.note_row(name, group, machine, (begin, at, seen), resets, healed, len(ids), len(lost))

    def is_steady(self, machine):
        """Whether the writes of the last seconds were accepted, and all other nodes are well."""
        since = time.time() - STEADY_S
        recent = [one for one in self.load.requests if one.kind == "write" and since < one.sent < time.time() - 1]
        accepted = sum(one.outcome == "ok" for one in recent)
        nodes = [name for name in self.cluster.HARK if name != machine.name]
        return accepted > 0.9 * len(recent) and len(recent) > 200 and all(
            self.watch.now(f"healthz {name}") == 200 for name in nodes)

    def note_row(self, name, group, machine, times, resets, healed, acknowledged, lost):
        begin, at, seen = times
        during = [one for one in self.load.requests if at <= one.sent < seen]
        before = [one for one in self.load.requests if begin <= one.sent < at - 1]
        writes = [one for one in during if one.kind == "write"]
        questions = [one for one in during if one.kind != "write"]
        accepted = sorted(one.ended for one in self.load.requests
                          if one.kind == "write" and one.outcome == "ok" and at - 2 < one.ended < seen)
        gaps = sorted(((later - earlier, later - at) for earlier, later in zip(accepted, accepted[1:])), reverse=True)
        gap, resumed = gaps[0] if gaps else (None, None)
        refused = [one for one in during if one.outcome == "refused"]
        odd = [one for one in refused if not one.words.startswith("error:")]
        silent = [one for one in during if one.outcome in ("lost", "open")]
        late = [one for one in refused if one.took > REFUSED_WITHIN_S]

        def p99(requests, chosen):
            times = sorted(one.took for one in requests if one.kind == "author" and one.outcome == "ok" and chosen(one))
            return times[int(len(times) * 0.99)] if times else None

        def apart(one):
            return group is None or one.group != group

        leaders = [self.watch.story(f"leader {other}", at, 200)
                   for names in self.cluster.GROUPS.values() for other in names]
        row = {
            "fault": name,
            "writes": len(writes),
            "writes_refused": sum(one.kind == "write" for one in refused),
            "longest_gap_s": gap,
            "resumed_s": resumed,
            "refusal_max_s": max((one.took for one in refused), default=None),
            "accepted_max_s": max((one.took for one in writes if one.outcome == "ok"), default=None),
            "accepted_late": sum(one.outcome == "ok" and one.took > 10.5 for one in writes),
            "answered_max_s": max((one.took for one in questions if one.outcome == "ok"), default=None),
            "questions": len(questions),
            "questions_refused": sum(one.kind != "write" for one in refused),
            "apart_p99_before_s": p99(before, apart),
            "apart_p99_s": p99(during, apart),
            "apart_refused": sum(one.kind == "author" and apart(one) for one in refused),
            "incomplete": sum(one.incomplete for one in during),
            "unanswered": len(silent),
            "odd_refusals": len(odd),
            "late_refusals": len(late),
            "acknowledged": acknowledged,
            "lost": lost,
            "resets": resets,
            "healed_s": healed,
            "healthz": {one: self.watch.story(f"healthz {one}", at, 200) for one in self.cluster.HARK},
            "haproxy": {one: self.watch.story(f"haproxy {one}", at, "UP") for one in self.cluster.HARK},
            "leaders": {subject: [(round(when - at, 1), state) for when, state in changes if when > at]
                        for subject, changes in self.watch.changes.items() if subject.startswith("leader ")},
            "words": sorted({one.words[:160] for one in refused})[:6],
        }
        self.rows.append(row)
        note(json.dumps(row, default=lambda value: value))
        for count, words in ((lost, "acknowledged events are lost"), (row["incomplete"], "answers lacked an event"),
                             (len(odd), f"refusals without error: {odd[:1]}"), (len(late), "refusals came late")):
            if count:
                self.faults.append(f"{name}: {count} {words}")
        if resumed is None or seen - at >= MOST_S:
            self.faults.append(f"{name}: the writes did not go on steadily within {MOST_S} s")
        is_node = machine.name in self.cluster.HARK
        if silent and not is_node:
            self.faults.append(f"{name}: {len(silent)} requests without an answer")

    async def run(self, wanted):
        await self.start()
        self.load = Load("ws://balancer.example:7777")
        tasks = self.load.start()
        await self.until("the tables are there", lambda: self.query("SELECT 'hark_nostr.record'::regclass"), START_S)
        self.place_authors()
        await asyncio.sleep(5)
        for name, group, choose, act in self.list():
            if wanted and not any(word in name for word in wanted):
                continue
            machine = choose()
            await self.fault(name, group, lambda: act(machine), machine)
        self.load.stopped = True
        await asyncio.gather(*tasks)
        note("comparing all tables with the events")
        check = subprocess.run([self.cluster.binary, "check", "--store", STORE], capture_output=True, text=True)
        note(check.stdout + check.stderr)
        if check.returncode != 0:
            self.faults.append("hark check has found faults")
        self.check = check.stdout.strip().splitlines()[-1] if check.stdout else ""

    def list(self):
        """The faults: a name, the group whose questions are affected, the machine, and what happens to it."""
        nodes = self.cluster.HARK
        everyone = [self.machines[name] for name in self.cluster.ETCD]
        return [
            ("a worker's PostgreSQL is killed", 1, lambda: self.leader(1), lambda m: m.kill("postgres")),
            ("a worker's PostgreSQL hangs", 2, lambda: self.leader(2), lambda m: m.freeze("postgres")),
            ("a worker's machine hangs", 1, lambda: self.leader(1), lambda m: m.freeze()),
            ("a worker's machine is cut off", 2, lambda: self.leader(2), lambda m: m.unplug()),
            ("a worker's standby is killed", 1, lambda: self.standby(1), lambda m: m.kill()),
            ("a worker's standby hangs", 2, lambda: self.standby(2), lambda m: m.freeze("postgres")),
            ("the coordinator's PostgreSQL is killed", 0, lambda: self.leader(0), lambda m: m.kill("postgres")),
            ("the coordinator's PostgreSQL hangs", 0, lambda: self.leader(0), lambda m: m.freeze("postgres")),
            ("the coordinator's machine is cut off", 0, lambda: self.leader(0), lambda m: m.unplug()),
            ("a Hark node is killed", None, lambda: self.machines[nodes[0]], lambda m: m.kill()),
            ("a Hark node hangs", None, lambda: self.machines[nodes[1]], lambda m: m.freeze()),
            ("a Hark node is cut off", None, lambda: self.machines[nodes[0]], lambda m: m.unplug()),
            ("the leader of etcd is killed", None, self.etcd_leader, lambda m: m.kill()),
            ("the leader of etcd hangs", None, self.etcd_leader, lambda m: m.freeze()),
            ("all of etcd is killed", None, self.etcd_leader, lambda m: [one.kill() for one in everyone]),
        ]

    def table(self):
        def seconds(value):
            return "-" if value is None else f"{value:.1f} s"

        def span(pair):
            left, back = pair
            return "never" if left is None else f"{left:.1f} to {'-' if back is None else f'{back:.1f}'} s"

        print("| fault | writes go on after | refused writes, questions | slowest refusal | questions to other workers: p99 "
              "before, during | /healthz not 200 | not in HAProxy | unanswered | acknowledged, lost |")
        print("|---|---|---|---|---|---|---|---|---|")
        for row in self.rows:
            is_pause = row["longest_gap_s"] is None or row["longest_gap_s"] >= 1
            print("|", " | ".join([
                row["fault"], seconds(row["resumed_s"]) if is_pause else "no pause",
                f"{row['writes_refused']} of {row['writes']}, {row['questions_refused']} of {row['questions']}",
                seconds(row["refusal_max_s"]),
                ", ".join("-" if value is None else f"{value * 1000:.0f} ms"
                          for value in (row["apart_p99_before_s"], row["apart_p99_s"])),
                "; ".join(span(pair) for pair in row["healthz"].values()),
                "; ".join(span(pair) for pair in row["haproxy"].values()),
                str(row["unanswered"]), f"{row['acknowledged']}, {row['lost']}",
            ]), "|")
        for name, words in (("PostgreSQL", [f"{self.cluster.server}/postgres", "--version"]),
                            ("Patroni", [str(Path(sys.executable).parent / "patroni"), "--version"]),
                            ("etcd", ["etcd", "--version"]), ("HAProxy", ["/usr/sbin/haproxy", "-v"])):
            print(f"{name}: {run(*words).splitlines()[0]}")
        print(f"{len(self.load.acknowledged):,} events were acknowledged; hark check: {self.check}")


def main():
    folder, binary, server, *wanted = sys.argv[1:]
    drill = Drill(Path(folder), binary, server)
    try:
        asyncio.run(drill.run(wanted))
    except RuntimeError as error:
        drill.faults.append(str(error))
    if drill.rows:
        drill.table()
    for fault in drill.faults:
        print(f"FAILED: {fault}")
    sys.stdout.flush()
    os._exit(1 if drill.faults else 0)


main()
