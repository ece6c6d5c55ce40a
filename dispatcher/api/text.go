package api

import (
	"encoding/json"
	"errors"
	"maps"
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
// first as any, to check it against its schema. Absent, null and empty mean the
// same: empty fields are taken out of what is checked.
func bodyFormat() huma.Format {
	format := huma.DefaultJSONFormat
	format.Unmarshal = func(data []byte, v any) error {
		seen, first := v.(*any)
		if first {
			if err := strictJSON(data); err != nil {
				return err
			}
		}
		if err := json.Unmarshal(data, v); err != nil || !first {
			return err
		}
		fields, _ := (*seen).(map[string]any)
		maps.DeleteFunc(fields, func(_ string, value any) bool { return value == "" })
		return nil
	}
	return format
}
