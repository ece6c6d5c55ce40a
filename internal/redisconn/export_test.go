package redisconn

import "context"

// Read reads the topology.
func (c *Conn) Read(ctx context.Context) error {
	_, err := c.topology.read(ctx)
	return err
}
