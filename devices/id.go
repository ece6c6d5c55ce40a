package devices

import "strconv"

// Limits of names, in characters.
const (
	MaxIDLength   = 128
	MaxPoolLength = 64
)

// ID names a device: 1 to MaxIDLength of A-Z a-z 0-9 . _ : -, starting with a
// letter or digit, case-sensitive. It is safe in topics, URLs and key names.
type ID string

// ParseID checks s and returns it as an ID. The error is an *Error with
// CodeInvalidDeviceID; it names the rule and never repeats s.
func ParseID(s string) (ID, error) {
	if rule := brokenRule(s, MaxIDLength); rule != "" {
		return "", &Error{ReasonInvalid, CodeInvalidDeviceID, "device id: " + rule}
	}
	return ID(s), nil
}

// ParsePool checks the name of a pool: as an ID, but at most MaxPoolLength
// characters. The error is an *Error with CodeInvalidPool.
func ParsePool(s string) error {
	if rule := brokenRule(s, MaxPoolLength); rule != "" {
		return &Error{ReasonInvalid, CodeInvalidPool, "pool: " + rule}
	}
	return nil
}

// brokenRule returns the rule of names that s breaks, or "".
func brokenRule(s string, longest int) string {
	switch {
	case s == "":
		return "must not be empty"
	case len(s) > longest:
		return "must have at most " + strconv.Itoa(longest) + " characters"
	case !isAlphanumeric(s[0]):
		return "must start with a letter or digit"
	}
	for i := range len(s) {
		if !isNameByte(s[i]) {
			return "may only contain A-Z a-z 0-9 . _ : -"
		}
	}
	return ""
}

func isAlphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

func isNameByte(c byte) bool {
	return isAlphanumeric(c) || c == '.' || c == '_' || c == ':' || c == '-'
}
