package redisconn

import "context"

// ReadTopology reads the topology of the Redis Cluster.
func (c *Conn) ReadTopology(ctx context.Context) error {
	_, err := c.topology.readTopology(ctx)
	return err
}

// DialedNodes returns the addresses of the nodes that ReadTopology asks, in the form in which they are dialed.
func (c *Conn) DialedNodes() (addrs []string) {
	for _, addr := range c.topology.nodesToAsk() {
		addrs = append(addrs, withoutLoopbackSuffix(addr))
	}
	return addrs
}

// BreakerOf returns the breaker of the node that owns this key.
func (b *Breakers) BreakerOf(ctx context.Context, key string) Breaker {
	return Breaker{b.breakerFor(ctx, key)}
}

// Breaker makes the type breaker available to the tests.
type Breaker struct{ *breaker }

// Enter calls tryBeginCall.
func (b Breaker) Enter() (probe, ok bool) { return b.tryBeginCall() }

// Leave calls endCall.
func (b Breaker) Leave(ctx context.Context, probe bool, err error) { b.endCall(ctx, probe, err) }

// IsOpen reports whether the breaker is open: then calls fail at once.
func (b Breaker) IsOpen() bool { return b.isOpen() }
