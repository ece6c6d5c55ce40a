package mqtt

// ReasonOf exports reasonOf.
func ReasonOf(err error) string { return reasonOf(err) }
