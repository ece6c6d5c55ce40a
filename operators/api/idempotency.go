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

	maxKey = 255 // maximum length of an Idempotency-Key, in bytes
)

func idempotencyKeyParam() *huma.Param {
	return &huma.Param{
		Name: keyHeader, In: "header", Schema: &huma.Schema{Type: "string"},
		Description: "1-255 visible ASCII characters. A request that is repeated with the same key within 24 hours is done once. The repetition gets the first response, without secrets and with Idempotency-Replayed: true.",
	}
}

// handleIdempotencyKey passes the request's Idempotency-Key to the ledger. It hashes the body while the body is read, so that the ledger
// can refuse the same key with a different request. The ledger keeps the response for 24 hours (answersKept of package store).
func handleIdempotencyKey(ctx huma.Context, next func(huma.Context)) error {
	key := ctx.Header(keyHeader)
	if !operationOf(ctx).Once || key == "" {
		next(ctx)
		return nil
	}
	isInvisible := func(c rune) bool { return c < '!' || c > '~' }
	if len(key) > maxKey || strings.ContainsFunc(key, isInvisible) {
		return invalidProblem(keyHeader + ": 1-255 visible ASCII characters")
	}
	request := &idempotentContext{humaContext: ctx, hash: sha256.New()}
	url := ctx.URL()
	_, _ = fmt.Fprintf(request.hash, "%s %s\n%s\n", ctx.Method(), url.RequestURI(), ctx.Header("Content-Type")) // a hash accepts all writes
	request.once = &store.Once{Owner: operatorOf(ctx.Context()).Token, Key: key, Digest: request.requestHash}
	next(huma.WithContext(request, store.WithOnce(ctx.Context(), request.once)))
	return nil
}

// secretUnlessReplay returns the secret. If this response is a replay of a stored response, it returns an empty
// string, because secrets are not stored.
func secretUnlessReplay(ctx context.Context, secret string) string {
	if once := store.OnceFrom(ctx); once != nil && once.Replayed {
		return ""
	}
	return secret
}

// idempotentContext hashes a request, and marks the response if it is a replay.
type idempotentContext struct {
	humaContext
	hash hash.Hash
	once *store.Once
}

// Unwrap returns the huma context of the request, without the idempotency.
func (c *idempotentContext) Unwrap() huma.Context { return c.humaContext }

// BodyReader returns a reader of the body that hashes everything that is read.
func (c *idempotentContext) BodyReader() io.Reader {
	return io.TeeReader(c.humaContext.BodyReader(), c.hash)
}

// requestHash reads the rest of the body and returns the hash of the request.
func (c *idempotentContext) requestHash() (hash []byte, err error) {
	if _, err := io.Copy(io.Discard, c.BodyReader()); err != nil {
		return nil, fmt.Errorf("reading the request: %w", err)
	}
	return c.hash.Sum(nil), nil
}

// SetStatus is called just before a response is written. It adds the header Idempotency-Replayed to a replay.
func (c *idempotentContext) SetStatus(status int) {
	if c.once.Replayed {
		c.SetHeader(replayedHeader, "true")
	}
	c.humaContext.SetStatus(status)
}
