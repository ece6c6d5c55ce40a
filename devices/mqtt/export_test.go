package mqtt

// ReasonOf tells one trouble from another.
func ReasonOf(err error) string { return reasonOf(err) }
