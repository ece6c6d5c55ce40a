package redisconn

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/internal/rescue"
)

const (
	maxAskedNodes = 8                     // maximum number of nodes asked by one read, unless more are configured
	answerGrace   = 50 * time.Millisecond // how long to wait for other answers after the first usable one
	lastHashSlot  = 16383                 // last hash slot of a Redis Cluster
)

// topology finds out which node owns which hash slots. A single server is treated as a Cluster of one node that owns all slots.
type topology struct {
	seeds   []string // the configured addresses
	options redis.UniversalOptions

	mu      sync.Mutex
	clients map[string]*redis.Client // clients by address
	latest  []redis.ClusterSlot      // the last topology that was read
	closed  bool                     // no node is asked any more, although the library may still call readTopology
}

func newTopology(options *redis.UniversalOptions) *topology {
	t := &topology{seeds: options.Addrs, options: *options, clients: make(map[string]*redis.Client)}
	if t.options.Dialer == nil {
		t.options.Dialer = t.dial
	}
	return t
}

type topologyAnswer struct {
	slots      []redis.ClusterSlot
	standalone bool  // the server is not a node of a Cluster
	clusterOK  bool  // the node reports that the Cluster works
	epoch      int64 // version of the topology: the answer with the higher epoch is newer
	err        error
}

// isBetterThan reports whether s is more trustworthy than other. Answers differ because a node that was cut off still reports the old topology.
func (s topologyAnswer) isBetterThan(other topologyAnswer) bool {
	switch {
	case s.err != nil || other.err != nil:
		return s.err == nil
	case s.standalone != other.standalone:
		return other.standalone
	case s.clusterOK != other.clusterOK:
		return s.clusterOK
	}
	return s.epoch > other.epoch
}

// readTopology asks several nodes concurrently and returns the most trustworthy answer. If no node answers, it returns the last topology.
func (t *topology) readTopology(ctx context.Context) ([]redis.ClusterSlot, error) {
	nodes := t.nodesToAsk()
	answers := make(chan topologyAnswer, len(nodes))
	for _, addr := range nodes {
		client := t.clientFor(addr)
		if client == nil {
			return nil, redis.ErrClosed
		}
		_ = rescue.Async(func() error {
			answer := topologyAnswer{err: errors.New("the query panicked")}
			defer func() { answers <- answer }()
			answer = askTopology(ctx, client, addr)
			return nil
		})
	}
	best := topologyAnswer{err: errors.New("no node was queried")}
	var late <-chan time.Time
	for range nodes {
		select {
		case answer := <-answers:
			if answer.isBetterThan(best) {
				best = answer
			}
			if late == nil && answer.clusterOK {
				late = time.After(answerGrace)
			}
			continue
		case <-late:
		}
		break
	}
	return t.storeBestAnswer(best)
}

// storeBestAnswer stores best, the most trustworthy answer, and returns its hash slots. If no node answered, it returns the last topology, or an
// error if there is none.
func (t *topology) storeBestAnswer(best topologyAnswer) ([]redis.ClusterSlot, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case best.err != nil && t.latest != nil:
	case best.err == nil && !best.standalone:
		t.latest = best.slots
	case len(t.seeds) == 1: // one server, or no node has answered so far: then each call to this address fails with the reason
		t.latest = []redis.ClusterSlot{{End: lastHashSlot, Nodes: []redis.ClusterNode{{Addr: reachableAddr(t.seeds[0], t.seeds[0])}}}}
	case best.err == nil:
		return nil, fmt.Errorf("redis URL: several hosts, but they are not nodes of a Cluster")
	default:
		return nil, best.err
	}
	return t.latest, nil
}

// nodesToAsk returns the configured addresses and the addresses of some nodes that earlier answers named.
func (t *topology) nodesToAsk() (addrs []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var found []string
	knownAddrs := make(map[string]bool)
	for _, seed := range t.seeds {
		knownAddrs[withoutLoopbackSuffix(seed)] = true
	}
	for _, slot := range t.latest {
		for _, node := range slot.Nodes {
			if addr := withoutLoopbackSuffix(node.Addr); !knownAddrs[addr] {
				knownAddrs[addr] = true
				found = append(found, node.Addr)
			}
		}
	}
	rand.Shuffle(len(found), func(i, k int) { found[i], found[k] = found[k], found[i] })
	t.closeUnknownClients(knownAddrs)
	all := append(append([]string(nil), t.seeds...), found...)
	return all[:min(len(all), max(maxAskedNodes, len(t.seeds)))]
}

// closeUnknownClients closes the connections to nodes that are no longer known. The caller holds mu.
func (t *topology) closeUnknownClients(knownAddrs map[string]bool) {
	for addr, client := range t.clients {
		if !knownAddrs[withoutLoopbackSuffix(addr)] {
			_ = client.Close()
			delete(t.clients, addr)
		}
	}
}

// clientFor returns the client for the node at addr. It returns nil after close.
func (t *topology) clientFor(addr string) *redis.Client {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil
	}
	client := t.clients[addr]
	if client == nil {
		options := t.options.Simple()
		options.Addr, options.DB, options.PoolSize, options.MaxIdleConns = addr, 0, 2, 1
		client = redis.NewClient(options)
		t.clients[addr] = client
	}
	return client
}

func (t *topology) close() (err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for _, client := range t.clients {
		err = errors.Join(err, client.Close())
	}
	return err
}

func askTopology(ctx context.Context, client *redis.Client, addr string) topologyAnswer {
	ctx, cancel := context.WithTimeout(ctx, 2*timeout)
	defer cancel()
	slots, err := client.ClusterSlots(ctx).Result() //nolint:staticcheck // deprecated since Redis 7, but older versions have only this command
	var answer redis.Error
	switch {
	case err == nil && len(slots) > 0:
	case err == nil: // a node that has not joined other nodes yet
		return topologyAnswer{err: fmt.Errorf("redis node %s belongs to no Cluster", withoutLoopbackSuffix(addr))}
	case errors.As(err, &answer) && !isInconclusiveError(err): // CLUSTER is forbidden or renamed, or the server does not support it
		return topologyAnswer{standalone: true, clusterOK: true}
	default:
		return topologyAnswer{err: fmt.Errorf("redis node %s: %w", withoutLoopbackSuffix(addr), err)}
	}
	info, _ := client.ClusterInfo(ctx).Result() // without this answer, clusterOK is false and the epoch is 0
	state := parseInfo(info)
	epoch, _ := strconv.ParseInt(state["cluster_current_epoch"], 10, 64)
	for _, slot := range slots {
		for i, node := range slot.Nodes {
			slot.Nodes[i].Addr = reachableAddr(node.Addr, addr)
		}
	}
	return topologyAnswer{slots: slots, clusterOK: state["cluster_state"] == "ok", epoch: epoch}
}

// isInconclusiveError reports whether serverErr, an error that the server sent, leaves open whether the server is a node of a Cluster.
func isInconclusiveError(serverErr error) bool {
	for _, prefix := range []string{"LOADING", "CLUSTERDOWN", "NOAUTH", "WRONGPASS", "ERR max number of clients"} {
		if strings.HasPrefix(serverErr.Error(), prefix) {
			return true
		}
	}
	return false
}

// parseInfo returns the fields in text, the answer to INFO or CLUSTER INFO.
func parseInfo(text string) (fields map[string]string) {
	fields = make(map[string]string)
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields
}

// reachableAddr returns the address under which this program reaches a node. addr is the node's address in the answer of the node at
// reporterAddr. addr may lack the host, have port 0 if the node serves only TLS, or be a loopback address of the reporter's machine.
func reachableAddr(addr, reporterAddr string) string {
	host, port := splitAddr(addr)
	fromHost, fromPort := splitAddr(reporterAddr)
	if ip := net.ParseIP(host); host == "" || host == "?" || ip != nil && ip.IsLoopback() {
		host = fromHost
	}
	if port == "0" {
		port = fromPort
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsLoopback() {
		host += loopbackSuffix
	}
	return net.JoinHostPort(host, port)
}

// loopbackSuffix is appended to a loopback address, so that it looks like a host name, because the library replaces a loopback address.
const loopbackSuffix = ".loopback"

// withoutLoopbackSuffix returns the address without the suffix that reachableAddr added.
func withoutLoopbackSuffix(addr string) string {
	host, port := splitAddr(addr)
	return net.JoinHostPort(strings.TrimSuffix(host, loopbackSuffix), port)
}

func (t *topology) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	tcp := &net.Dialer{Timeout: t.options.DialTimeout}
	if t.options.TLSConfig == nil {
		return tcp.DialContext(ctx, network, withoutLoopbackSuffix(addr))
	}
	return (&tls.Dialer{NetDialer: tcp, Config: t.options.TLSConfig}).DialContext(ctx, network, withoutLoopbackSuffix(addr))
}
