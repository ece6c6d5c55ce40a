package devices

import "strconv"

// Limits of names, in characters.
const (
	MaxIDLength   = 128
	MaxPoolLength = 64
)

// ID names a device. It has 1 to MaxIDLength characters of A-Z a-z 0-9 . _ : -, starts with
// a letter or digit and is case-sensitive. It is safe in topics, URLs and key names.
type ID string

// ParseID checks s and returns it as an ID. The error is an *Error with CodeInvalidDeviceID. The text of the
// error names the broken rule and never repeats s.
func ParseID(s string) (ID, error) {
	if rule := violatedNameRule(s, MaxIDLength); rule != "" {
		return "", &Error{ReasonInvalid, CodeInvalidDeviceID, "device id: " + rule}
	}
	return ID(s), nil
}

// CheckPoolName checks the name of a pool. The rules are the rules of an ID, but with at most
// MaxPoolLength characters. The error is an *Error with CodeInvalidPool.
func CheckPoolName(s string) error {
	if rule := violatedNameRule(s, MaxPoolLength); rule != "" {
		return &Error{ReasonInvalid, CodeInvalidPool, "pool: " + rule}
	}
	return nil
}

// violatedNameRule returns the naming rule that s breaks, or "" if s is a valid name of at most longest characters.
func violatedNameRule(s string, longest int) string {
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
