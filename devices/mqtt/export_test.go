package mqtt

// ReasonOf exports errorTextWithoutAddress.
func ReasonOf(err error) string { return errorTextWithoutAddress(err) }
