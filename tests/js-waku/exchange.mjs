// A real js-waku light node that asks a Waku node for further nodes by the peer exchange.
//
//   node exchange.mjs <ws multiaddr> <cluster> <shards>
//
// Success: one JSON line on stdout with the records of the answer, and exit code 0.

// js-waku 0.0.36 requires Node 22. Older versions of Node lack only this function.
Promise.withResolvers ??= function withResolvers() {
  let resolve, reject;
  const promise = new this((yes, no) => ((resolve = yes), (reject = no)));
  return { promise, resolve, reject };
};

setTimeout(() => {
  process.stderr.write("not done after 60 s\n");
  process.exit(1);
}, 60_000).unref();

const [address, cluster, shards] = process.argv.slice(2);
const [{ createLightNode }, { PeerExchange }, { webSockets }, { all }] = await Promise.all([
  import("@waku/sdk"),
  // The package exports only the discovery that is built on this class.
  import("./node_modules/@waku/discovery/dist/peer-exchange/peer_exchange.js"),
  import("@libp2p/websockets"),
  import("@libp2p/websockets/filters"),
]);
const node = await createLightNode({
  networkConfig: { clusterId: Number(cluster), numShardsInCluster: Number(shards) },
  defaultBootstrap: false,
  libp2p: { hideWebSocketInfo: true, transports: [webSockets({ filter: all })] },
});
await node.start();
await node.dial(address);
const [connection] = node.libp2p.getConnections();
const exchange = new PeerExchange(node.libp2p.components);
const { peerInfos, error } = await exchange.query({ numPeers: 60, peerId: connection.remotePeer });
const records = (peerInfos ?? []).map(({ ENR: enr }) => ({
  peerId: enr.peerId?.toString(),
  shards: enr.shardInfo,
  waku2: enr.waku2,
  ip: enr.ip,
  tcp: enr.tcp,
  multiaddrs: (enr.multiaddrs ?? []).map(String),
}));
process.stdout.write(`${JSON.stringify({ error, records })}\n`);
process.exit(error ? 1 : 0);
