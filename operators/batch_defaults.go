package operators

import "cmp"

// The defaults of a batch: the values of fields that a request omits or that a patch sets to null. Every other field defaults to its zero
// value. The `default` tags of NewBatch, docs/protocol.md and the help of the command `batches create` repeat these values.
const (
	DefaultBatchWeight    = 1
	DefaultLane           = "normal"
	DefaultMaxAttempts    = 3
	DefaultRetryBackoffMS = 10_000
	DefaultOnLost         = "retry"
	DefaultFinishInside   = true
)

// WithDefaults returns the batch with the default of each field that the request omits.
func (b NewBatch) WithDefaults() NewBatch {
	b.Weight = cmp.Or(b.Weight, DefaultBatchWeight)
	b.Lane = cmp.Or(b.Lane, DefaultLane)
	b.MaxAttempts = cmp.Or(b.MaxAttempts, DefaultMaxAttempts)
	b.RetryBackoffMS = cmp.Or(b.RetryBackoffMS, new(int64(DefaultRetryBackoffMS)))
	b.OnLost = cmp.Or(b.OnLost, DefaultOnLost)
	b.FinishInside = cmp.Or(b.FinishInside, new(DefaultFinishInside))
	if len(b.RetryOn) == 0 {
		b.RetryOn = []string{"failed", "timed_out"}
	}
	return b
}
