// A real js-waku light client against a Waku Store v3 node that already holds messages.
//
//   node js-waku.mjs <ws multiaddr|-> <tcp multiaddr|-> <cluster> <shards|static> <messages.json>
//
// shards: the number of shards of an auto-sharded cluster (cluster 1 has 8), or "static".
// messages.json: [{hash, contentTopic, pubsubTopic, timestamp, payloadHex, metaHex?}, …]: all
// messages of the node, ordered by timestamp and hash. A timestamp is a string of nanoseconds, and
// not zero.
//
// Success: one JSON line {"ok":true,…} on stdout, and exit code 0. Failure: the reason on stderr,
// and exit code 1.
//
// The behaviour of js-waku (@waku/core lib/store/store.js), and the requirements for the node that
// follow:
// - js-waku requests page after page until a page is empty, and ignores the cursor of the response.
//   Its next cursor is the hash of the page's last message when going forward, and of the page's
//   first message when going backward.
// - A page is in ascending order in both directions. When going backward, the newest page comes
//   first.
// - `paginationForward: false` is a default value in proto3, so it is not sent. An absent field 52
//   must mean backward (13/WAKU2-STORE); otherwise a backward query never ends.
// - js-waku reads every stream to its end, so the node must close its side after the answer.
import { readFileSync } from "node:fs";

// js-waku 0.0.36 requires Node 22. Older versions of Node lack only this function.
Promise.withResolvers ??= function withResolvers() {
  let resolve, reject;
  const promise = new this((yes, no) => ((resolve = yes), (reject = no)));
  return { promise, resolve, reject };
};

const DEFAULT_PAGE = Number(process.env.WAKU_DEFAULT_PAGE ?? 20);
const MAX_PAGE = Number(process.env.WAKU_MAX_PAGE ?? 100);
const TIMEOUT_S = Number(process.env.WAKU_TIMEOUT_S ?? 300);
const MAX_TOPICS = 10; // nwaku's maximum number of content topics in a query with a cursor
const DAY_NS = 86_400_000_000_000n;

let where = "start";

function die(error) {
  const text = error instanceof Error ? (error.stack ?? String(error)) : String(error);
  process.stderr.write(`js-waku: ${where}: ${text}\n`);
  process.exit(1);
}
function must(truth, text) {
  if (!truth) throw new Error(typeof text === "function" ? text() : text);
}
const usage =
  "usage: node js-waku.mjs <ws multiaddr|-> <tcp multiaddr|-> <cluster> <shards|static> <messages.json>";

process.on("unhandledRejection", (e) => process.stderr.write(`js-waku: unhandled: ${e}\n`));
setTimeout(() => die(`not done after ${TIMEOUT_S} s`), TIMEOUT_S * 1000).unref();

const hex = (bytes) => Buffer.from(bytes ?? []).toString("hex");
const bare = (s) => (s.startsWith("0x") ? s.slice(2) : s).toLowerCase();

function load(file) {
  const all = JSON.parse(readFileSync(file, "utf8")).map((m) => ({
    hash: bare(m.hash),
    contentTopic: m.contentTopic,
    pubsubTopic: m.pubsubTopic,
    ns: BigInt(m.timestamp),
    payload: bare(m.payloadHex ?? ""),
    meta: m.metaHex === undefined ? undefined : bare(m.metaHex),
  }));
  must(all.length > 0, "the file of expected messages is empty");
  const seen = new Set();
  all.forEach((m, i) => {
    must(/^[0-9a-f]{64}$/.test(m.hash), `expected message ${i}: bad hash ${m.hash}`);
    must(/^\/waku\/2\/rs\/\d+\/\d+$/.test(m.pubsubTopic), `expected message ${i}: bad pubsub topic`);
    must(m.ns > 0n, `expected message ${i}: js-waku hashes no timestamp 0 as nwaku does`);
    must(!seen.has(m.hash), `expected message ${i}: ${m.hash} is there twice`);
    seen.add(m.hash);
    const before = all[i - 1];
    must(
      !before || before.ns < m.ns || (before.ns === m.ns && before.hash < m.hash),
      `expected message ${i} is out of (timestamp, hash) order`,
    );
  });
  return all;
}

const chunks = (list, size) =>
  Array.from({ length: Math.ceil(list.length / size) }, (_, i) => list.slice(i * size, (i + 1) * size));

/** The pages a node has to give: ascending within a page, newest page first going backward. */
function pagesOf(expected, size, forward) {
  if (forward) return chunks(expected, size);
  const pages = [];
  for (let end = expected.length; end > 0; end -= size) {
    pages.push(expected.slice(Math.max(0, end - size), end));
  }
  return pages;
}

/** What js-waku puts on the wire for a Date: a double, so a multiple of 256 ns these years. */
const wireNs = (date) => BigInt(date.getTime() * 1_000_000);
const msOf = (ns) => Number(ns / 1_000_000n);

function same(got, want, at) {
  must(got !== undefined, `${at}: not decoded (want ${want.hash})`);
  const parts = [
    ["hash", got.hashStr, want.hash],
    ["contentTopic", got.contentTopic, want.contentTopic],
    ["pubsubTopic", got.pubsubTopic, want.pubsubTopic],
    ["timestamp", String(got.proto.timestamp), String(want.ns)],
    ["payload", hex(got.payload), want.payload],
  ];
  if (want.meta !== undefined) parts.push(["meta", hex(got.meta), want.meta]);
  // The hash is compared last, since any wrong field also changes the hash.
  for (const [name, a, b] of [...parts.slice(1), parts[0]]) {
    must(a === b, `${at}: ${name} is ${a}, want ${b} (message ${want.hash})`);
  }
}

class Run {
  constructor(node, all, cluster, auto) {
    Object.assign(this, { node, all, cluster, auto });
    this.count = { queries: 0, pages: 0, messages: 0 };
  }

  decoder(contentTopic, pubsubTopic) {
    const shardId = Number(pubsubTopic.split("/").at(-1));
    const decoder = this.node.createDecoder(this.auto ? { contentTopic } : { contentTopic, shardId });
    must(
      decoder.pubsubTopic === pubsubTopic,
      `js-waku puts ${contentTopic} on ${decoder.pubsubTopic}, the file says ${pubsubTopic}`,
    );
    return decoder;
  }

  async query(name, decoders, expected, options = {}) {
    const forward = options.paginationForward ?? true;
    const asked = options.paginationLimit;
    const size = asked === undefined ? DEFAULT_PAGE : Math.min(asked, MAX_PAGE);
    where = `${this.transport}: ${name}, ${forward ? "forward" : "backward"}, page ${asked ?? "default"}`;
    this.count.queries += 1;
    const want = pagesOf(expected, size, forward);
    let n = 0;
    for await (const promises of this.node.store.queryGenerator(decoders, options)) {
      const page = await Promise.all(promises);
      must(n < want.length, () => `page ${n} is one too many: ${page.map((m) => m?.hashStr)}`);
      must(
        page.length === want[n].length,
        () => `page ${n} has ${page.length} messages, want ${want[n].length}`,
      );
      if (options.includeData === false) {
        must(page.every((m) => m === undefined), `page ${n} has data that was not asked for`);
      } else {
        page.forEach((m, i) => same(m, want[n][i], `page ${n}, message ${i}`));
      }
      n += 1;
      this.count.pages += 1;
      this.count.messages += page.length;
    }
    // If js-waku cannot open a stream, it ends the query without an error.
    must(
      n === want.length,
      () =>
        `ended after ${n} pages, want ${want.length}` +
        (this.node.libp2p.getConnections().length ? "" : " (the connection is gone)"),
    );
  }

  async bothWays(name, decoders, expected, options = {}) {
    await this.query(name, decoders, expected, { ...options, paginationForward: true });
    await this.query(name, decoders, expected, { ...options, paginationForward: false });
  }

  /** A Date at or after ns such that no message sits exactly on what goes over the wire. */
  dateOff(ns, list) {
    let date = new Date(msOf(ns) + 1);
    while (list.some((m) => m.ns === wireNs(date))) date = new Date(date.getTime() + 1);
    return date;
  }

  async shard(pubsubTopic) {
    const inShard = this.all.filter((m) => m.pubsubTopic === pubsubTopic);
    const topics = [...new Set(inShard.map((m) => m.contentTopic))].sort();
    const of = (some) => inShard.filter((m) => some.includes(m.contentTopic));
    const decoders = (some) => some.map((t) => this.decoder(t, pubsubTopic));

    // All messages of the shard, ten content topics at a time, with every page size.
    for (const some of chunks(topics, MAX_TOPICS)) {
      for (const paginationLimit of [7, 20, 100, undefined, 1000]) {
        await this.bothWays(`${some.length} topics of ${pubsubTopic}`, decoders(some), of(some), {
          ...(paginationLimit && { paginationLimit }),
        });
      }
    }
    const some = topics.slice(0, MAX_TOPICS);
    const list = of(some);
    const ask = decoders(some);

    for (const topic of topics.slice(0, 20)) {
      await this.bothWays(`topic ${topic}`, decoders([topic]), of([topic]), { paginationLimit: 20 });
    }
    if (topics.length > 2) {
      await this.bothWays("2 of the topics", decoders([topics[0], topics.at(-1)]), of([topics[0], topics.at(-1)]));
    }

    // A topic without messages. The application and the version are the same, so the shard is too.
    const parts = topics[0].split("/");
    parts[parts.length - 2] = `nothing-${process.pid}`;
    await this.bothWays("a topic without messages", decoders([parts.join("/")]), []);
    await this.bothWays("one topic with, one without", decoders([topics[0], parts.join("/")]), of([topics[0]]));

    await this.times(pubsubTopic, list, ask);
    await this.hashes(pubsubTopic, inShard, decoders(topics));
    await this.cursors(list, ask);

    await this.query("hashes only", ask, list, { includeData: false, paginationLimit: 100 });

    where = `${this.transport}: queryWithOrderedCallback`;
    let got = [];
    await this.node.store.queryWithOrderedCallback(ask, (m) => void got.push(m));
    must(got.length === list.length, `${got.length} messages, want ${list.length}`);
    got.forEach((m, i) => same(m, list[i], `message ${i}`));

    where = `${this.transport}: queryWithPromiseCallback`;
    got = [];
    await this.node.store.queryWithPromiseCallback(ask, async (m) => void got.push(await m), {
      paginationLimit: 100,
    });
    must(got.length === list.length, `${got.length} messages, want ${list.length}`);
    const byHash = new Map(got.map((m) => [m.hashStr, m]));
    list.forEach((m, i) => same(byHash.get(m.hash), m, `message ${i}`));
  }

  async times(pubsubTopic, list, ask) {
    const at = (part) => list[Math.min(list.length - 1, Math.floor(list.length * part))].ns;
    for (const [a, b] of [[0.25, 0.75], [0, 0.5], [0.5, 1], [0.49, 0.51]]) {
      const from = this.dateOff(at(a), list);
      let to = this.dateOff(at(b) > wireNs(from) ? at(b) : wireNs(from), list);
      // js-waku divides a longer range into days, and omits the last part.
      if (to.getTime() - from.getTime() > 86_400_000) to = this.dateOff(wireNs(from) + DAY_NS - 10_000_000n, list);
      must(to.getTime() - from.getTime() <= 86_400_000, "the test chose more than a day");
      const want = list.filter((m) => m.ns >= wireNs(from) && m.ns < wireNs(to));
      for (const paginationLimit of [7, 100]) {
        const options = { timeStart: from, timeEnd: to, paginationLimit };
        await this.bothWays(`time ${from.toISOString()} to ${to.toISOString()}`, ask, want, options);
      }
      const early = list.filter((m) => m.ns < wireNs(to));
      await this.bothWays(`time to ${to.toISOString()}`, ask, early, { timeEnd: to, paginationLimit: 100 });
      const late = list.filter((m) => m.ns >= wireNs(from));
      await this.bothWays(`time from ${from.toISOString()}`, ask, late, { timeStart: from, paginationLimit: 100 });
    }
    const day = 86_400_000;
    const first = msOf(list[0].ns);
    await this.bothWays("a time before everything", ask, [], {
      timeStart: new Date(first - 2 * day),
      timeEnd: new Date(first - day - 1),
    });

    // The bounds themselves, if a Date can express the time of a message exactly.
    const exact = list.find((m) => wireNs(new Date(msOf(m.ns))) === m.ns);
    if (!exact) return;
    const date = new Date(msOf(exact.ns));
    const from = list.filter((m) => m.ns >= exact.ns);
    await this.bothWays("timeStart at a message", ask, from, { timeStart: date, paginationLimit: 100 });
    // timeEnd is inclusive in nwaku, but exclusive in the specification and in the documentation of
    // js-waku.
    where = `${this.transport}: timeEnd at a message`;
    const got = [];
    for await (const page of this.node.store.queryGenerator(ask, { timeEnd: date, paginationLimit: 100 })) {
      got.push(...(await Promise.all(page)));
    }
    const before = list.filter((m) => m.ns < exact.ns);
    const upTo = list.filter((m) => m.ns <= exact.ns);
    must([before.length, upTo.length].includes(got.length), `${got.length} messages, want ${before.length} or ${upTo.length}`);
    got.forEach((m, i) => same(m, upTo[i], `message ${i}`));
    this.timeEnd = got.length === upTo.length ? "inclusive" : "exclusive";
  }

  async hashes(pubsubTopic, inShard, ask) {
    // js-waku sends the first decoder's pubsub topic with the hashes, so all hashes are from one
    // shard.
    const bytes = (m) => Uint8Array.from(Buffer.from(m.hash, "hex"));
    for (const n of [1, 5, 20, 21, 100, 150]) {
      if (n > inShard.length) break;
      const step = inShard.length / n;
      const want = Array.from({ length: n }, (_, i) => inShard[Math.floor(i * step)]);
      // The request has the hashes in another order than the answer.
      const messageHashes = want.map(bytes).sort((a, b) => Buffer.compare(b, a));
      await this.bothWays(`${n} message hashes`, ask, want, { messageHashes });
      await this.bothWays(`${n} message hashes`, ask, want, { messageHashes, paginationLimit: 7 });
    }
    const unknown = new Uint8Array(32).fill(0x5a);
    await this.bothWays("an unknown message hash", ask, [], { messageHashes: [unknown] });
    const want = [inShard[0]];
    await this.bothWays("a known and an unknown hash", ask, want, { messageHashes: [unknown, bytes(want[0])] });
  }

  async cursors(list, ask) {
    for (const part of [0, 0.3, 0.999]) {
      const i = Math.floor(list.length * part);
      // store.createCursor() is not used, because it cuts the time to milliseconds before hashing.
      const paginationCursor = Uint8Array.from(Buffer.from(list[i].hash, "hex"));
      const options = { paginationCursor, paginationLimit: 100 };
      await this.query(`from message ${i}`, ask, list.slice(i + 1), { ...options, paginationForward: true });
      await this.query(`from message ${i}`, ask, list.slice(0, i), { ...options, paginationForward: false });
    }
  }
}

async function over(transport, address, all, networkConfig, auto) {
  const began = Date.now();
  where = `${transport}: create`;
  const [{ createLightNode }, { Protocols }, { tcp }, { webSockets }, { all: anyWs }, { decodeRelayShard }] =
    await Promise.all([
      import("@waku/sdk"),
      import("@waku/interfaces"),
      import("@libp2p/tcp"),
      import("@libp2p/websockets"),
      import("@libp2p/websockets/filters"),
      import("@waku/utils"),
    ]);
  const node = await createLightNode({
    networkConfig,
    defaultBootstrap: false,
    libp2p: {
      hideWebSocketInfo: true, // would be printed on stdout
      transports: [transport === "ws" ? webSockets({ filter: anyWs }) : tcp()],
    },
  });
  where = `${transport}: dial ${address}`;
  await node.dial(address);
  where = `${transport}: wait for a store peer`;
  await node.waitForPeers([Protocols.Store], 20_000);

  where = `${transport}: look at the peer`;
  const [connection] = node.libp2p.getConnections();
  must(connection, "no connection is left");
  must(connection.remoteAddr.toString().includes("/ws") === (transport === "ws"), `dialled ${connection.remoteAddr}`);
  const peer = await node.libp2p.peerStore.get(connection.remotePeer);
  const store = node.store.multicodec;
  must(peer.protocols.includes(store), `identify does not name ${store}: ${peer.protocols.join(" ")}`);
  const raw = peer.metadata.get("shardInfo");
  const shards = raw && decodeRelayShard(raw);
  const need = [...new Set(all.map((m) => Number(m.pubsubTopic.split("/").at(-1))))];
  if (shards) {
    must(shards.clusterId === networkConfig.clusterId, `metadata says cluster ${shards.clusterId}`);
    for (const s of need) must(shards.shards.includes(s), `metadata says shards ${shards.shards}, not ${s}`);
  }

  const run = new Run(node, all, networkConfig.clusterId, auto);
  run.transport = transport;
  for (const pubsubTopic of [...new Set(all.map((m) => m.pubsubTopic))].sort()) {
    await run.shard(pubsubTopic);
  }
  where = `${transport}: stop`;
  await node.stop();
  return {
    agent: Buffer.from(peer.metadata.get("AgentVersion") ?? []).toString(),
    muxer: connection.multiplexer,
    encryption: connection.encryption,
    shards: shards ? shards.shards : "no metadata",
    protocols: peer.protocols,
    timeEnd: run.timeEnd ?? "no message on a bound",
    ...run.count,
    ms: Date.now() - began,
  };
}

async function main() {
  const [ws, tcp, cluster, shards, file] = process.argv.slice(2);
  must(file && /^\d+$/.test(cluster) && /^(\d+|static)$/.test(shards), usage);
  const auto = shards !== "static";
  const clusterId = Number(cluster);
  const networkConfig = auto ? { clusterId, numShardsInCluster: Number(shards) } : { clusterId };
  where = `read ${file}`;
  const all = load(file);
  for (const m of all) must(m.pubsubTopic.startsWith(`/waku/2/rs/${clusterId}/`), `${m.pubsubTopic} is of another cluster`);
  const result = { ok: true, node: process.version, sdk: "0.0.36", expected: all.length };
  must(ws !== "-" || tcp !== "-", usage);
  if (ws !== "-") result.ws = await over("ws", ws, all, networkConfig, auto);
  if (tcp !== "-") result.tcp = await over("tcp", tcp, all, networkConfig, auto);
  process.stdout.write(`${JSON.stringify(result)}\n`, () => process.exit(0));
}

main().catch(die);
