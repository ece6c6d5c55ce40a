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
	mostAsked = 8                     // maximum number of nodes asked by one read, unless more are configured
	lateBy    = 50 * time.Millisecond // how long to wait for other answers after the first usable one
	lastSlot  = 16383
)

// topology finds out which node owns which hash slots. A single server is treated as a Cluster of one node that owns all slots.
type topology struct {
	seeds   []string // the configured addresses
	options redis.UniversalOptions

	mu     sync.Mutex
	asking map[string]*redis.Client // clients by address
	latest []redis.ClusterSlot      // the last topology that was read
	closed bool                     // no node is asked any more, although the library may still call read
}

func newTopology(options *redis.UniversalOptions) *topology {
	t := &topology{seeds: options.Addrs, options: *options, asking: make(map[string]*redis.Client)}
	if t.options.Dialer == nil {
		t.options.Dialer = t.dial
	}
	return t
}

// said is the answer of a node about the topology.
type said struct {
	slots []redis.ClusterSlot
	alone bool  // the server is not a node of a Cluster
	works bool  // the node reports that the Cluster works
	epoch int64 // a higher epoch knows of later changes
	err   error
}

// better reports whether s is more trustworthy than o. A node that was cut off from the other nodes keeps reporting the old topology.
func (s said) better(o said) bool {
	switch {
	case s.err != nil || o.err != nil:
		return s.err == nil
	case s.alone != o.alone:
		return o.alone
	case s.works != o.works:
		return s.works
	}
	return s.epoch > o.epoch
}

// read asks several nodes concurrently and uses the most trustworthy answer. If no node answers, it keeps the last topology: then calls
// fail, or an old node works again.
func (t *topology) read(ctx context.Context) ([]redis.ClusterSlot, error) {
	nodes := t.nodes()
	answers := make(chan said, len(nodes))
	for _, addr := range nodes {
		client := t.client(addr)
		if client == nil {
			return nil, redis.ErrClosed
		}
		_ = rescue.Async(func() error {
			answer := said{err: errors.New("asking it panicked")}
			defer func() { answers <- answer }()
			answer = ask(ctx, client, addr)
			return nil
		})
	}
	best := said{err: errors.New("nobody was asked")}
	var late <-chan time.Time
	for range nodes {
		select {
		case answer := <-answers:
			if answer.better(best) {
				best = answer
			}
			if late == nil && answer.works {
				late = time.After(lateBy)
			}
			continue
		case <-late:
		}
		break
	}
	return t.believe(best)
}

func (t *topology) believe(best said) ([]redis.ClusterSlot, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case best.err != nil && t.latest != nil:
	case best.err == nil && !best.alone:
		t.latest = best.slots
	case len(t.seeds) == 1: // also if there was never an answer: then the calls fail with the reason
		t.latest = []redis.ClusterSlot{{End: lastSlot, Nodes: []redis.ClusterNode{{Addr: reachable(t.seeds[0], t.seeds[0])}}}}
	case best.err == nil:
		return nil, fmt.Errorf("redis URL: several hosts, and they are not nodes of a Cluster")
	default:
		return nil, best.err
	}
	return t.latest, nil
}

// nodes returns the addresses to ask: the configured ones, and some of the nodes that were found.
func (t *topology) nodes() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var found []string
	known := make(map[string]bool)
	for _, seed := range t.seeds {
		known[dialed(seed)] = true
	}
	for _, slot := range t.latest {
		for _, node := range slot.Nodes {
			if addr := dialed(node.Addr); !known[addr] {
				known[addr] = true
				found = append(found, node.Addr)
			}
		}
	}
	rand.Shuffle(len(found), func(i, k int) { found[i], found[k] = found[k], found[i] })
	t.forget(known)
	all := append(append([]string(nil), t.seeds...), found...)
	return all[:min(len(all), max(mostAsked, len(t.seeds)))]
}

// forget closes the connections to nodes that are no longer known. The caller holds mu.
func (t *topology) forget(known map[string]bool) {
	for addr, client := range t.asking {
		if !known[dialed(addr)] {
			_ = client.Close()
			delete(t.asking, addr)
		}
	}
}

// client returns the client for a node. It returns nil after close.
func (t *topology) client(addr string) *redis.Client {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil
	}
	client := t.asking[addr]
	if client == nil {
		options := t.options.Simple()
		options.Addr, options.DB, options.PoolSize, options.MaxIdleConns = addr, 0, 2, 1
		client = redis.NewClient(options)
		t.asking[addr] = client
	}
	return client
}

func (t *topology) close() (err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for _, client := range t.asking {
		err = errors.Join(err, client.Close())
	}
	return err
}

// ask reads the topology of one node.
func ask(ctx context.Context, client *redis.Client, addr string) said {
	ctx, cancel := context.WithTimeout(ctx, 2*timeout)
	defer cancel()
	slots, err := client.ClusterSlots(ctx).Result() //nolint:staticcheck // deprecated by Redis 7, and all that older ones know
	var answer redis.Error
	switch {
	case err == nil && len(slots) > 0:
	case err == nil: // a node that has not joined other nodes yet
		return said{err: fmt.Errorf("redis node %s has no part in a Cluster", dialed(addr))}
	case errors.As(err, &answer) && !busy(err): // CLUSTER is forbidden or renamed, or the server does not support it
		return said{alone: true, works: true}
	default:
		return said{err: fmt.Errorf("redis node %s: %w", dialed(addr), err)}
	}
	info, _ := client.ClusterInfo(ctx).Result() // without this answer, works is false and the epoch is 0
	state := fields(info)
	epoch, _ := strconv.ParseInt(state["cluster_current_epoch"], 10, 64)
	for _, slot := range slots {
		for i, node := range slot.Nodes {
			slot.Nodes[i].Addr = reachable(node.Addr, addr)
		}
	}
	return said{slots: slots, works: state["cluster_state"] == "ok", epoch: epoch}
}

// busy reports whether an error reply does not show what the server supports.
func busy(err error) bool {
	for _, said := range []string{"LOADING", "CLUSTERDOWN", "NOAUTH", "WRONGPASS", "ERR max number of clients"} {
		if strings.HasPrefix(err.Error(), said) {
			return true
		}
	}
	return false
}

// fields parses the answer to INFO or CLUSTER INFO.
func fields(info string) map[string]string {
	all := make(map[string]string)
	for line := range strings.Lines(info) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			all[name] = value
		}
	}
	return all
}

// reachable returns the address at which the program can reach a node, given the address from of the node that named it. A node may not
// know its own host, may report port 0 if it serves only TLS, or may report a loopback address of its machine.
func reachable(addr, from string) string {
	host, port := splitAddr(addr)
	fromHost, fromPort := splitAddr(from)
	if ip := net.ParseIP(host); host == "" || host == "?" || ip != nil && ip.IsLoopback() {
		host = fromHost
	}
	if port == "0" {
		port = fromPort
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsLoopback() {
		host += loopback
	}
	return net.JoinHostPort(host, port)
}

// loopback is a suffix that turns loopback addresses into names. Otherwise the library would replace them, because it takes them for
// addresses of the node's machine.
const loopback = ".loopback"

// dialed returns the address without the suffix that reachable added.
func dialed(addr string) string {
	host, port := splitAddr(addr)
	return net.JoinHostPort(strings.TrimSuffix(host, loopback), port)
}

// dial connects to a node.
func (t *topology) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	tcp := &net.Dialer{Timeout: t.options.DialTimeout}
	if t.options.TLSConfig == nil {
		return tcp.DialContext(ctx, network, dialed(addr))
	}
	return (&tls.Dialer{NetDialer: tcp, Config: t.options.TLSConfig}).DialContext(ctx, network, dialed(addr))
}
