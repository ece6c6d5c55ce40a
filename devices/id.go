package devices

import "strconv"

// Limits of names, in characters.
const (
	MaxIDLength   = 128
	MaxPoolLength = 64
)

// ID names a device: 1 to MaxIDLength characters of A-Z a-z 0-9 . _ : -, beginning with a letter or digit, case-sensitive. It is safe in
// topics, URLs and key names.
type ID string

// ParseID returns text as an ID. The error is an *Error with CodeInvalidDeviceID that names the broken rule and never repeats text.
func ParseID(text string) (ID, error) {
	if rule := violatedNameRule(text, MaxIDLength); rule != "" {
		return "", &Error{ReasonInvalid, CodeInvalidDeviceID, "device id: " + rule}
	}
	return ID(text), nil
}

// CheckPoolName returns an *Error with CodeInvalidPool if name is not a valid name of a pool. A pool name follows the rules of an ID, but
// has at most MaxPoolLength characters.
func CheckPoolName(name string) error {
	if rule := violatedNameRule(name, MaxPoolLength); rule != "" {
		return &Error{ReasonInvalid, CodeInvalidPool, "pool: " + rule}
	}
	return nil
}

func violatedNameRule(name string, maxLength int) (rule string) {
	switch {
	case name == "":
		return "must not be empty"
	case len(name) > maxLength:
		return "must have at most " + strconv.Itoa(maxLength) + " characters"
	case !isAlphanumeric(name[0]):
		return "must start with a letter or digit"
	}
	for i := range len(name) {
		if !isAllowedInName(name[i]) {
			return "may only contain A-Z a-z 0-9 . _ : -"
		}
	}
	return ""
}

func isAlphanumeric(char byte) bool {
	return 'a' <= char && char <= 'z' || 'A' <= char && char <= 'Z' || '0' <= char && char <= '9'
}

func isAllowedInName(char byte) bool {
	return isAlphanumeric(char) || char == '.' || char == '_' || char == ':' || char == '-'
}
