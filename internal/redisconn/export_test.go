package redisconn

import "context"

// Read reads the topology.
func (c *Conn) Read(ctx context.Context) error {
	_, err := c.topology.read(ctx)
	return err
}

// Asked are the nodes that Read asks, as they are dialed.
func (c *Conn) Asked() (addrs []string) {
	for _, addr := range c.topology.nodes() {
		addrs = append(addrs, dialed(addr))
	}
	return addrs
}

// BreakerOf is that of the node that has a key.
func (b *Breakers) BreakerOf(ctx context.Context, key string) Breaker { return Breaker{b.of(ctx, key)} }

// Breaker is one.
type Breaker struct{ *breaker }

// Enter asks for a call.
func (b Breaker) Enter() (probe, ok bool) { return b.enter() }

// Leave ends one.
func (b Breaker) Leave(ctx context.Context, probe bool, err error) { b.leave(ctx, probe, err) }

// IsOpen is whether calls fail at once.
func (b Breaker) IsOpen() bool { return b.isOpen() }
