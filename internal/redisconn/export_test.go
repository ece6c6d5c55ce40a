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
