package limits

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// errStarted: what was asked before cannot be believed.
var errStarted = errors.New("redis was started anew")

// lives notices that Redis was started anew, perhaps with older data: then each of its
// connections is new. Of a Cluster it notices nothing.
type lives struct {
	client redis.UniversalClient
	dials  atomic.Int64
	number atomic.Int64 // of the life, as far as it is known

	mu       sync.Mutex // of who looks; the others wait for what it finds
	seen     int64      // dials that were looked at
	identity string
}

func newLives(client redis.UniversalClient) *lives {
	l := &lives{client: client}
	if single, ok := client.(*redis.Client); ok {
		single.AddHook(l)
	}
	return l
}

// still says whether the life that answers is this one, after an answer came.
func (l *lives) still(ctx context.Context, life int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.seen != l.dials.Load() { // asking may need a connection, too
		dials := l.dials.Load()
		info, err := l.client.Info(ctx, "server").Result()
		if lost(err) {
			return err
		}
		identity := runID(info)
		if identity != l.identity && l.identity != "" {
			l.number.Add(1)
		}
		l.seen, l.identity = dials, identity
	}
	if l.number.Load() != life {
		return errStarted
	}
	return nil
}

func runID(info string) string {
	for line := range strings.Lines(info) {
		if id, ok := strings.CutPrefix(line, "run_id:"); ok {
			return strings.TrimSpace(id)
		}
	}
	return ""
}

// DialHook counts connections.
func (l *lives) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := next(ctx, network, addr)
		if err == nil {
			l.dials.Add(1)
		}
		return conn, err
	}
}

// ProcessHook changes nothing.
func (*lives) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

// ProcessPipelineHook changes nothing.
func (*lives) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
