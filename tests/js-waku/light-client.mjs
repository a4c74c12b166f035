// Two real js-waku light clients with one node as their only peer: they publish by light push,
// receive by filter, and read the history from the store.
//
//   node light-client.mjs <ws or wss multiaddr> <cluster> <shards in cluster> <burst>
//
// Success: one JSON line {"ok":true,…} on stdout, and exit code 0. Failure: the reason on stderr,
// and exit code 1.
import { randomBytes } from "node:crypto";

// js-waku 0.0.36 requires Node 22. Older versions of Node lack only this function.
Promise.withResolvers ??= function withResolvers() {
  let resolve, reject;
  const promise = new this((yes, no) => ((resolve = yes), (reject = no)));
  return { promise, resolve, reject };
};

const TIMEOUT_S = Number(process.env.WAKU_TIMEOUT_S ?? 120);
let where = "start";

function die(error) {
  const text = error instanceof Error ? (error.stack ?? String(error)) : String(error);
  process.stderr.write(`light-client: ${where}: ${text}\n`);
  process.exit(1);
}
function must(truth, text) {
  if (!truth) throw new Error(typeof text === "function" ? text() : text);
}

process.on("unhandledRejection", (e) => process.stderr.write(`light-client: unhandled: ${e}\n`));
setTimeout(() => die(`not done after ${TIMEOUT_S} s`), TIMEOUT_S * 1000).unref();

const utf8 = (bytes) => Buffer.from(bytes).toString("utf8");
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

async function until(what, isTrue) {
  where = what;
  while (!(await isTrue())) await sleep(20);
}

async function main() {
  const [address, cluster, shards, burst] = process.argv.slice(2);
  must(burst, "usage: node light-client.mjs <ws or wss multiaddr> <cluster> <shards> <burst>");
  const { createLightNode, HealthStatus, Protocols, WakuEvent } = await import("@waku/sdk");
  const networkConfig = { clusterId: Number(cluster), numShardsInCluster: Number(shards) };
  // The default settings, except that plain WebSockets are allowed at such an address.
  const isPlain = address.includes("/ws/") && !address.includes("/tls/");
  const start = () =>
    createLightNode({
      networkConfig,
      defaultBootstrap: false,
      bootstrapPeers: [address],
      ...(isPlain && { libp2p: { filterMultiaddrs: false, hideWebSocketInfo: true } }),
    });
  where = "start two clients";
  const [one, two] = [await start(), await start()];
  let health;
  one.events.addEventListener(WakuEvent.Health, (event) => (health = event.detail));
  where = "wait for a peer with all protocols";
  for (const node of [one, two]) {
    await node.waitForPeers([Protocols.LightPush, Protocols.Filter, Protocols.Store], 30_000);
  }
  await until("health", () => one.health === HealthStatus.MinimallyHealthy);

  const contentTopic = `/light-${randomBytes(4).toString("hex")}/1/chat/proto`;
  const [decoder, encoder] = [one.createDecoder({ contentTopic }), one.createEncoder({ contentTopic })];
  const received = [];
  where = "subscribe";
  must(await one.filter.subscribe(decoder, (m) => received.push(utf8(m.payload))), "not subscribed");

  const sent = [];
  async function send(node, text, options = {}) {
    where = `send ${text}`;
    const result = await node.lightPush.send(encoder, { payload: Buffer.from(text) }, { autoRetry: false, ...options });
    must(result.successes.length === 1, () => `${text}: ${JSON.stringify(result)}`);
    sent.push(text);
  }
  await send(one, "own");
  await send(two, "another's");
  await send(two, "by version 2", { useLegacy: true });
  await until("three messages arrive", () => received.length >= 3);

  // Many messages at the same time. Each is received once.
  const texts = Array.from({ length: Number(burst) }, (_, i) => `burst ${i}`);
  for (let at = 0; at < texts.length; at += 8) {
    await Promise.all(texts.slice(at, at + 8).map((text) => send(two, text)));
  }
  await until(`all ${sent.length} messages arrive`, () => received.length >= sent.length);
  must([...received].sort().join() === [...sent].sort().join(), () => `received ${received}`);

  where = "read the history";
  const history = [];
  for await (const page of two.store.queryGenerator([two.createDecoder({ contentTopic })])) {
    for (const message of await Promise.all(page)) history.push(utf8(message.payload));
  }
  must([...history].sort().join() === [...sent].sort().join(), () => `the store has ${history}`);

  where = "unsubscribe";
  must(await one.filter.unsubscribe(decoder), "not unsubscribed");
  where = "subscribe again";
  const again = [];
  must(await two.filter.subscribe(two.createDecoder({ contentTopic }), (m) => again.push(utf8(m.payload))), "not subscribed");
  await send(one, "after");
  await until("the message after it arrives", () => again.includes("after"));
  must(!received.includes("after"), "a message arrives after the subscription has ended");

  where = "a message that is refused";
  const wrong = one.createEncoder({ contentTopic: `/x/1/${"x".repeat(160_000)}/proto` });
  const refused = await one.lightPush.send(wrong, { payload: Buffer.from("x") }, { autoRetry: false });
  must(refused.failures[0]?.error === "Remote peer rejected", () => JSON.stringify(refused));

  where = "stop";
  const [connection] = one.libp2p.getConnections();
  const announced = (await one.libp2p.peerStore.get(connection.remotePeer)).addresses;
  const addresses = announced.map(({ multiaddr }) => multiaddr.toString());
  const result = { ok: true, addresses, health: health ?? one.health, received: received.length, muxer: connection?.multiplexer };
  await one.stop();
  await two.stop();
  process.stdout.write(`${JSON.stringify(result)}\n`, () => process.exit(0));
}

main().catch(die);
