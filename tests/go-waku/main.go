// Two light clients of go-waku with one node as their only peer: they publish by light push, receive
// by filter, and read the history from the store.
//
//	go-waku <multiaddr> <cluster> <burst>
//
// Success: one JSON line {"ok":true,…} on stdout, and exit code 0. Failure: the reason on stderr, and
// exit code 1.
package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/crypto"
	"github.com/multiformats/go-multiaddr"
	"github.com/waku-org/go-waku/waku/v2/node"
	"github.com/waku-org/go-waku/waku/v2/peerstore"
	"github.com/waku-org/go-waku/waku/v2/protocol"
	"github.com/waku-org/go-waku/waku/v2/protocol/filter"
	"github.com/waku-org/go-waku/waku/v2/protocol/lightpush"
	"github.com/waku-org/go-waku/waku/v2/protocol/pb"
	"github.com/waku-org/go-waku/waku/v2/protocol/store"
	"google.golang.org/protobuf/proto"
)

const timeout = 120 * time.Second

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	said, err := run(ctx, os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "go-waku:", err)
		os.Exit(1)
	}
	line, _ := json.Marshal(said)
	fmt.Println(string(line))
}

// client is a light client, and the payloads that its subscription has received.
type client struct {
	node     *node.WakuNode
	lock     sync.Mutex
	received []string
}

func start(ctx context.Context, peer multiaddr.Multiaddr, cluster uint16) (*client, error) {
	key, err := crypto.GenerateKey()
	if err != nil {
		return nil, err
	}
	var shards []uint16
	var topics []string
	for index := range uint16(protocol.GenerationZeroShardsCount) {
		shards = append(shards, index)
		topics = append(topics, protocol.NewStaticShardingPubsubTopic(cluster, index).String())
	}
	light, err := node.New(
		node.WithPrivateKey(key),
		node.WithHostAddress(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}),
		node.WithClusterID(cluster),
		// A client without shards of its own disconnects from every peer.
		node.WithShards(shards),
		node.WithWakuFilterLightNode(),
	)
	if err != nil {
		return nil, err
	}
	if err := light.Start(ctx); err != nil {
		return nil, err
	}
	// Clients of a network learn the shards and the services of nodes from the records of discovery.
	_, err = light.AddPeer(peer, peerstore.Static, topics,
		filter.FilterSubscribeID_v20beta1, lightpush.LightPushID_v20beta1, store.StoreQueryID_v300)
	if err != nil {
		return nil, err
	}
	return &client{node: light}, light.DialPeerWithMultiAddress(ctx, peer)
}

func (c *client) read(messages <-chan *protocol.Envelope) {
	for message := range messages {
		c.lock.Lock()
		c.received = append(c.received, string(message.Message().Payload))
		c.lock.Unlock()
	}
}

func (c *client) texts() []string {
	c.lock.Lock()
	defer c.lock.Unlock()
	return slices.Clone(c.received)
}

func (c *client) publish(ctx context.Context, topic, text string) error {
	message := &pb.WakuMessage{
		Payload:      []byte(text),
		ContentTopic: topic,
		Version:      proto.Uint32(0),
		Timestamp:    proto.Int64(time.Now().UnixNano()),
	}
	if _, err := c.node.Lightpush().Publish(ctx, message); err != nil {
		return fmt.Errorf("publish %q: %w", text, err)
	}
	return nil
}

// until waits for a condition, until the context ends.
func until(ctx context.Context, what string, holds func() bool) error {
	for !holds() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("not within %s: %s", timeout, what)
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

// same compares two lists of texts without their order.
func same(found, sent []string) error {
	found, sent = slices.Sorted(slices.Values(found)), slices.Sorted(slices.Values(sent))
	if !slices.Equal(found, sent) {
		return fmt.Errorf("found %s, sent %s", strings.Join(found, ", "), strings.Join(sent, ", "))
	}
	return nil
}

func run(ctx context.Context, args []string) (map[string]any, error) {
	if len(args) != 3 {
		return nil, errors.New("usage: go-waku <multiaddr> <cluster> <burst>")
	}
	peer, err := multiaddr.NewMultiaddr(args[0])
	if err != nil {
		return nil, err
	}
	cluster, err := strconv.ParseUint(args[1], 10, 16)
	if err != nil {
		return nil, err
	}
	burst, err := strconv.Atoi(args[2])
	if err != nil {
		return nil, err
	}
	one, err := start(ctx, peer, uint16(cluster))
	if err != nil {
		return nil, fmt.Errorf("start: %w", err)
	}
	two, err := start(ctx, peer, uint16(cluster))
	if err != nil {
		return nil, fmt.Errorf("start: %w", err)
	}
	var random [4]byte
	if _, err := rand.Read(random[:]); err != nil {
		return nil, err
	}
	topic := "/light-" + hex.EncodeToString(random[:]) + "/1/chat/proto"
	wanted := protocol.NewContentFilter("", topic)
	subscriptions, err := one.node.FilterLightnode().Subscribe(ctx, wanted)
	if err != nil {
		return nil, fmt.Errorf("subscribe: %w", err)
	}
	for _, subscription := range subscriptions {
		go one.read(subscription.C)
	}

	sent := []string{"own", "another's"}
	if err := errors.Join(one.publish(ctx, topic, sent[0]), two.publish(ctx, topic, sent[1])); err != nil {
		return nil, err
	}
	for start := 0; start < burst; start += 8 {
		var group sync.WaitGroup
		faults := make([]error, min(8, burst-start))
		for i := range faults {
			text := fmt.Sprintf("burst %d", start+i)
			sent = append(sent, text)
			group.Add(1)
			go func() {
				defer group.Done()
				faults[i] = two.publish(ctx, topic, text)
			}()
		}
		group.Wait()
		if err := errors.Join(faults...); err != nil {
			return nil, err
		}
	}
	arrived := func() bool { return len(one.texts()) >= len(sent) }
	if err := until(ctx, "every message arrives", arrived); err != nil {
		return nil, fmt.Errorf("%w: %d of %d", err, len(one.texts()), len(sent))
	}
	if err := same(one.texts(), sent); err != nil {
		return nil, fmt.Errorf("filter: %w", err)
	}

	var history []string
	pubsub, err := protocol.GetPubSubTopicFromContentTopic(topic)
	if err != nil {
		return nil, err
	}
	pages := 0
	criteria := store.FilterCriteria{ContentFilter: protocol.NewContentFilter(pubsub, topic)}
	result, err := two.node.Store().Query(ctx, criteria, store.WithPaging(true, 50))
	for ; err == nil && !result.IsComplete(); err = result.Next(ctx) {
		pages++
		for _, message := range result.Messages() {
			history = append(history, string(message.GetMessage().GetPayload()))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	if err := same(history, sent); err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}

	if err := one.node.FilterLightnode().Ping(ctx, subscriptions[0].PeerID); err != nil {
		return nil, fmt.Errorf("ping: %w", err)
	}
	if _, err := one.node.FilterLightnode().Unsubscribe(ctx, wanted); err != nil {
		return nil, fmt.Errorf("unsubscribe: %w", err)
	}
	if err := one.node.FilterLightnode().Ping(ctx, subscriptions[0].PeerID); err == nil {
		return nil, errors.New("a ping without a subscription is answered with success")
	}
	one.node.Stop()
	two.node.Stop()
	return map[string]any{"ok": true, "received": len(sent), "pages": pages}, nil
}
