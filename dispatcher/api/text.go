package api

import (
	"encoding/json"
	"errors"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
)

// errText refuses text that no database column holds.
var errText = errors.New("text must be UTF-8 without U+0000")

// storable says whether s can be kept as text.
func storable(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }

// storableQuery says the same of a query string's names and values.
func storableQuery(raw string) bool {
	text, err := url.QueryUnescape(raw)
	return err == nil && storable(text)
}

// bodyFormat reads the bodies of operators' requests. Huma reads each twice:
// first as any, to check it against its schema.
func bodyFormat() huma.Format {
	format := huma.DefaultJSONFormat
	format.Unmarshal = func(data []byte, v any) error {
		seen, first := v.(*any)
		if first {
			if err := strictJSON(data); err != nil {
				return err
			}
		}
		if err := json.Unmarshal(data, v); err != nil {
			return err
		}
		if first {
			return checkBody(data, *seen)
		}
		return nil
	}
	return format
}

// checkBody refuses text that cannot be kept, and takes empty fields out of
// what is checked: absent, null and empty mean the same.
func checkBody(data []byte, seen any) error {
	if !utf8.Valid(data) || !storableValue(seen) {
		return errText
	}
	fields, _ := seen.(map[string]any)
	for name, value := range fields {
		if value == "" {
			delete(fields, name)
		}
	}
	return nil
}

func storableValue(value any) bool {
	switch v := value.(type) {
	case string:
		return storable(v)
	case []any:
		for _, e := range v {
			if !storableValue(e) {
				return false
			}
		}
	case map[string]any:
		for name, e := range v {
			if !storable(name) || !storableValue(e) {
				return false
			}
		}
	}
	return true
}
