// Package deadline divides the time limit of a request among the steps that answer it.
package deadline

import (
	"context"
	"time"
)

// Share returns a context that ends after a fraction of the time that ctx has left. For example, with a fraction of 0.5 it ends after half of
// this time. If ctx has no deadline, the returned context has none.
func Share(ctx context.Context, fraction float64) (shortened context.Context, cancel context.CancelFunc) {
	end, hasDeadline := ctx.Deadline()
	if !hasDeadline {
		return context.WithCancel(ctx)
	}
	left := time.Until(end)
	return context.WithTimeout(ctx, time.Duration(fraction*float64(left)))
}
