package app

import (
	"context"
	"testing"
	"time"
)

// TestEmbeddedKeysEnd checks a key with a TTL in the in-process Redis: it expires, and not too early.
func TestEmbeddedKeysEnd(t *testing.T) {
	t.Parallel()
	var opened cleanup
	b, err := new(DevServer).openEmbedded(t.Context(), DevOptions{Data: t.TempDir()}, &opened)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = opened.closeAll(context.WithoutCancel(t.Context())) })
	if err := b.redis.Client.Set(t.Context(), "k", "v", time.Hour).Err(); err != nil {
		t.Fatal(err)
	}
	b.advanceTTLs(59 * time.Minute)
	if n := b.redis.Client.Exists(t.Context(), "k").Val(); n != 1 {
		t.Error("the key has ended too soon")
	}
	b.advanceTTLs(time.Minute)
	if n := b.redis.Client.Exists(t.Context(), "k").Val(); n != 0 {
		t.Error("the key is still there")
	}
}
