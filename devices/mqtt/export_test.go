package mqtt

// ReasonOf exports stableReason.
func ReasonOf(err error) string { return stableReason(err) }
