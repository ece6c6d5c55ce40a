package operators

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

// defaultRetryOn returns the causes after which a task is tried again, also if a request names no cause.
func defaultRetryOn() []string { return []string{"failed", "timed_out"} }

// WithDefaults returns the batch with the default of each field that the request omits.
func (b NewBatch) WithDefaults() NewBatch {
	setDefault(&b.Weight, b.Weight == 0, DefaultBatchWeight)
	setDefault(&b.Lane, b.Lane == "", DefaultLane)
	setDefault(&b.MaxAttempts, b.MaxAttempts == 0, DefaultMaxAttempts)
	setDefault(&b.RetryBackoffMS, b.RetryBackoffMS == nil, new(int64(DefaultRetryBackoffMS)))
	setDefault(&b.RetryOn, len(b.RetryOn) == 0, defaultRetryOn())
	setDefault(&b.OnLost, b.OnLost == "", DefaultOnLost)
	setDefault(&b.FinishInside, b.FinishInside == nil, new(DefaultFinishInside))
	return b
}

// setDefault sets field to value if the field is unset.
func setDefault[T any](field *T, isUnset bool, value T) {
	if isUnset {
		*field = value
	}
}
