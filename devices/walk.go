package devices

import (
	"bytes"
	"encoding/json"
	"iter"
)

// The functions of this file walk JSON that json.Valid has accepted, without
// copying or allocating: values are slices of the text, exactly as sent. They
// may panic on anything else.

// members yields the members of an object in order. A key is unescaped.
func members(object []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(key, value []byte) bool) {
		rest := skipSpace(object[1:])
		for rest[0] != '}' {
			key, afterKey := cutValue(rest)
			value, afterValue := cutValue(skipSpace(skipSpace(afterKey)[len(":"):]))
			if !yield(unquoteKey(key), value) {
				return
			}
			rest = skipComma(afterValue)
		}
	}
}

// elements yields the elements of an array in order.
func elements(array []byte) iter.Seq[[]byte] {
	return func(yield func(value []byte) bool) {
		rest := skipSpace(array[1:])
		for rest[0] != ']' {
			value, after := cutValue(rest)
			if !yield(value) {
				return
			}
			rest = skipComma(after)
		}
	}
}

// cutValue splits text after the value that it starts with.
func cutValue(text []byte) (value, rest []byte) {
	end := valueEnd(text)
	return text[:end:end], text[end:]
}

func valueEnd(text []byte) int {
	depth := 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '"':
			i = stringEnd(text, i)
		case '{', '[':
			depth++
			continue
		case '}', ']':
			depth--
		default:
			i += scalarEnd(text[i:]) - 1
		}
		if depth == 0 {
			return i + 1
		}
	}
	return len(text)
}

// scalarEnd returns the length of a number, literal, or run of what separates
// values inside of containers.
func scalarEnd(text []byte) int {
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case ',', ':', '"', '{', '}', '[', ']', ' ', '\t', '\r', '\n':
			return i
		}
	}
	return len(text)
}

func skipSpace(text []byte) []byte {
	for i, c := range text {
		if c != ' ' && c != '\t' && c != '\r' && c != '\n' {
			return text[i:]
		}
	}
	return nil
}

func skipComma(text []byte) []byte {
	text = skipSpace(text)
	if text[0] == ',' {
		text = skipSpace(text[1:])
	}
	return text
}

// isEmpty reports whether a value counts as absent: missing, null, "", {}, [].
func isEmpty(value []byte) bool {
	if len(value) == 0 || string(value) == "null" || string(value) == `""` {
		return true
	}
	if value[0] != '{' && value[0] != '[' {
		return false
	}
	return len(skipSpace(value[1:])) == 1
}

func isObject(value []byte) bool { return value[0] == '{' }
func isArray(value []byte) bool  { return value[0] == '[' }
func isString(value []byte) bool { return value[0] == '"' }

// unquote returns the text of a JSON string.
func unquote(value []byte) string {
	return string(unquoteKey(value))
}

// unquoteKey is unquote without a copy for strings without escapes.
func unquoteKey(value []byte) []byte {
	inner := value[1 : len(value)-1]
	if !bytes.ContainsRune(inner, '\\') {
		return inner
	}
	var s string
	_ = json.Unmarshal(value, &s) // valid by contract
	return []byte(s)
}
