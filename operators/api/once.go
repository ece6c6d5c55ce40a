package api

import (
	"context"
	"crypto/sha256"
	"fmt"
	"hash"
	"io"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/fleetslots/dispatcher/store"
)

const (
	keyHeader      = "Idempotency-Key"
	replayedHeader = "Idempotency-Replayed"

	maxKey = 255 // bytes

	onceMark = "once" // in the metadata of operations that take a key
)

// creating lets an operation take an Idempotency-Key.
func creating(op huma.Operation) huma.Operation {
	op.Metadata[onceMark] = true
	op.Parameters = append(op.Parameters, &huma.Param{
		Name: keyHeader, In: "header", Schema: &huma.Schema{Type: "string"},
		Description: "1-255 visible ASCII characters. The same request with it, sent again within 24 hours, is done once and gets the first answer, without secrets and with Idempotency-Replayed: true.",
	})
	return op
}

// once gives the request's key to the ledger, and hashes the body as it is
// read: the same key with another request is refused.
func once(ctx huma.Context, next func(huma.Context)) error {
	key := ctx.Header(keyHeader)
	if takes, _ := ctx.Operation().Metadata[onceMark].(bool); !takes || key == "" {
		next(ctx)
		return nil
	}
	unseen := func(c rune) bool { return c < '!' || c > '~' }
	if len(key) > maxKey || strings.ContainsFunc(key, unseen) {
		return invalid(keyHeader + ": 1-255 visible ASCII characters")
	}
	request := &onceContext{humaContext: ctx, hash: sha256.New()}
	url := ctx.URL()
	_, _ = fmt.Fprintf(request.hash, "%s %s\n%s\n", ctx.Method(), url.RequestURI(), ctx.Header("Content-Type")) // a hash takes all
	request.once = &store.Once{Owner: operatorOf(ctx.Context()).Token, Key: key, Digest: request.digest}
	next(huma.WithContext(request, store.WithOnce(ctx.Context(), request.once)))
	return nil
}

// shownOnce is the secret, unless this answer is a replay: secrets are not kept.
func shownOnce(ctx context.Context, secret string) string {
	if once := store.OnceOf(ctx); once != nil && once.Replayed {
		return ""
	}
	return secret
}

// onceContext hashes a request, and marks an answer that is a replay.
type onceContext struct {
	humaContext
	hash hash.Hash
	once *store.Once
}

// Unwrap finds the request below.
func (c *onceContext) Unwrap() huma.Context { return c.humaContext }

// BodyReader hashes what is read through it.
func (c *onceContext) BodyReader() io.Reader { return io.TeeReader(c.humaContext.BodyReader(), c.hash) }

// digest reads what is left of the body.
func (c *onceContext) digest() ([]byte, error) {
	if _, err := io.Copy(io.Discard, c.BodyReader()); err != nil {
		return nil, fmt.Errorf("reading the request: %w", err)
	}
	return c.hash.Sum(nil), nil
}

// SetStatus is called just before an answer is written.
func (c *onceContext) SetStatus(status int) {
	if c.once.Replayed {
		c.SetHeader(replayedHeader, "true")
	}
	c.humaContext.SetStatus(status)
}
