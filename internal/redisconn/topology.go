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
	mostAsked = 8                     // nodes by one reading
	lateBy    = 50 * time.Millisecond // how much later than the first answer that will do others may come
	lastSlot  = 16383
)

// topology finds out which node has which hash slots. One server is taken for a
// Cluster of one node, which has them all.
type topology struct {
	seeds   []string // as configured
	options redis.UniversalOptions

	mu     sync.Mutex
	asking map[string]*redis.Client // by address
	latest []redis.ClusterSlot      // the last one that was read
	closed bool                     // nothing is asked any more: the library may still want to
}

func newTopology(options *redis.UniversalOptions) *topology {
	t := &topology{seeds: options.Addrs, options: *options, asking: make(map[string]*redis.Client)}
	if t.options.Dialer == nil {
		t.options.Dialer = t.dial
	}
	return t
}

// said is what a node says of the topology.
type said struct {
	slots []redis.ClusterSlot
	alone bool  // it is no node of a Cluster
	works bool  // it finds that the Cluster does
	epoch int64 // higher: it knows of later changes
	err   error
}

// better is whether this is to be believed rather than another one: a node
// that was cut off from the others goes on to say what was.
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

// read asks several nodes at once and believes the best of them. When none answers
// it stays with what it knew: calls fail then, or an old node is back.
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
	case len(t.seeds) == 1: // also while nobody knows better: then its calls say why
		t.latest = []redis.ClusterSlot{{End: lastSlot, Nodes: []redis.ClusterNode{{Addr: reachable(t.seeds[0], t.seeds[0])}}}}
	case best.err == nil:
		return nil, fmt.Errorf("redis URL: several hosts, and they are not nodes of a Cluster")
	default:
		return nil, best.err
	}
	return t.latest, nil
}

// nodes are those to be asked: the configured ones, and some that were found.
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

// forget closes the connections to nodes that are gone.
func (t *topology) forget(known map[string]bool) {
	for addr, client := range t.asking {
		if !known[dialed(addr)] {
			_ = client.Close()
			delete(t.asking, addr)
		}
	}
}

// client is nil when it is too late to ask.
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

// ask asks one node.
func ask(ctx context.Context, client *redis.Client, addr string) said {
	ctx, cancel := context.WithTimeout(ctx, 2*timeout)
	defer cancel()
	slots, err := client.ClusterSlots(ctx).Result() //nolint:staticcheck // deprecated by Redis 7, and all that older ones know
	var answer redis.Error
	switch {
	case err == nil && len(slots) > 0:
	case err == nil: // a node that nobody has met yet
		return said{err: fmt.Errorf("redis node %s has no part in a Cluster", dialed(addr))}
	case errors.As(err, &answer) && !busy(err): // forbidden, renamed, or it supports no Cluster
		return said{alone: true, works: true}
	default:
		return said{err: fmt.Errorf("redis node %s: %w", dialed(addr), err)}
	}
	info, _ := client.ClusterInfo(ctx).Result() // without it, it is believed the least
	state := fields(info)
	epoch, _ := strconv.ParseInt(state["cluster_current_epoch"], 10, 64)
	for _, slot := range slots {
		for i, node := range slot.Nodes {
			slot.Nodes[i].Addr = reachable(node.Addr, addr)
		}
	}
	return said{slots: slots, works: state["cluster_state"] == "ok", epoch: epoch}
}

// busy is whether an answer says nothing of what the server can do.
func busy(err error) bool {
	for _, said := range []string{"LOADING", "CLUSTERDOWN", "NOAUTH", "WRONGPASS", "ERR max number of clients"} {
		if strings.HasPrefix(err.Error(), said) {
			return true
		}
	}
	return false
}

// fields are those of INFO and of CLUSTER INFO.
func fields(info string) map[string]string {
	all := make(map[string]string)
	for line := range strings.Lines(info) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			all[name] = value
		}
	}
	return all
}

// reachable is the address of a node as it can be reached from here, given whom it was
// learnt from: a node may not know its own host, say port 0 where only TLS
// is served, or name itself by an address that means the machine it is on.
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

// loopback makes names of the addresses of this machine, which the library would
// replace: it takes them for addresses of the machine that a node is on.
const loopback = ".loopback"

// dialed is the address that is meant by what reachable made.
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
