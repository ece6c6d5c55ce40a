package app

import (
	"context"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/must"
)

// TestEmbeddedKeysEnd checks a key with a TTL in the in-process Redis: it expires, and not too early.
func TestEmbeddedKeysEnd(t *testing.T) {
	t.Parallel()
	var opened cleanup
	b, err := new(DevServer).openEmbedded(t.Context(), DevOptions{Data: t.TempDir()}, &opened)
	must.Succeed(t, err)
	t.Cleanup(func() { _ = opened.closeAll(context.WithoutCancel(t.Context())) })
	must.Succeed(t, b.redis.Client.Set(t.Context(), "k", "v", time.Hour).Err())
	b.advanceTTLs(59 * time.Minute)
	if n := b.redis.Client.Exists(t.Context(), "k").Val(); n != 1 {
		t.Error("the key has ended too soon")
	}
	b.advanceTTLs(time.Minute)
	if n := b.redis.Client.Exists(t.Context(), "k").Val(); n != 0 {
		t.Error("the key is still there")
	}
}
