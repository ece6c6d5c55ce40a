// Package deadline divides the time of an answer among the steps that make it.
package deadline

import (
	"context"
	"time"
)

// Share returns a context that ends after the given fraction of the time that ctx has left: with fraction 0.5, after half of the time. If
// ctx has no deadline, the returned context has none.
func Share(ctx context.Context, fraction float64) (context.Context, context.CancelFunc) {
	end, hasDeadline := ctx.Deadline()
	if !hasDeadline {
		return context.WithCancel(ctx)
	}
	left := time.Until(end)
	return context.WithTimeout(ctx, time.Duration(fraction*float64(left)))
}
