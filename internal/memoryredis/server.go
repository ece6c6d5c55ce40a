package memoryredis

import (
	"fmt"

	"github.com/alicebob/miniredis/v2"
)

// Start runs a server on a free port of the loopback interface. Clients need the password, unless it is empty. The caller must close the
// server. Start fails only if no port can be opened.
func Start(password string) (*miniredis.Miniredis, error) {
	memory := miniredis.NewMiniRedis()
	if password != "" {
		memory.RequireAuth(password)
	}
	if err := memory.StartAddr("127.0.0.1:0"); err != nil {
		return nil, fmt.Errorf("starting the in-process Redis: %w", err)
	}
	memory.Server().SetPreHook(newCommandHook(memory.Server()).beforeCommand)
	return memory, nil
}
