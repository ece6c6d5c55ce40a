package store

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// mergeAttributes applies patch (a merge patch) to old and returns the result; changed is false if it equals old. It returns ErrTooLarge
// beyond the limits of attributes. It keeps the digits of numbers exactly.
func mergeAttributes(old, patch json.RawMessage) (merged json.RawMessage, changed bool, err error) {
	target, err := decodeObject(old)
	if err != nil {
		return nil, false, err
	}
	changes, err := decodeObject(patch)
	if err != nil {
		return nil, false, err
	}
	if len(target) == 0 {
		target = map[string]any{}
	}
	before, err := json.Marshal(target)
	if err != nil {
		return nil, false, fmt.Errorf("attributes: %w", err)
	}
	merged, err = json.Marshal(mergePatch(target, changes))
	if err != nil {
		return nil, false, fmt.Errorf("attributes: %w", err)
	}
	if len(target) > maxAttributes {
		return nil, false, fmt.Errorf("attributes: %w: %d members, at most %d", ErrTooLarge, len(target), maxAttributes)
	}
	if len(merged) > maxAttributesSize {
		return nil, false, fmt.Errorf("attributes: %w: %d bytes, at most %d", ErrTooLarge, len(merged), maxAttributesSize)
	}
	return merged, !bytes.Equal(before, merged), nil
}

// decodeObject decodes the JSON object raw. It keeps the digits of numbers exactly.
func decodeObject(raw json.RawMessage) (map[string]any, error) {
	var o map[string]any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if err := d.Decode(&o); err != nil {
		return nil, fmt.Errorf("attributes: must be a JSON object: %w", err)
	}
	return o, nil
}

// mergePatch implements MergePatch of RFC 7396 for a patch that is an object. It changes target and returns it.
func mergePatch(target, patch map[string]any) map[string]any {
	for name, value := range patch {
		switch v := value.(type) {
		case nil:
			delete(target, name)
		case map[string]any:
			nested, _ := target[name].(map[string]any)
			if nested == nil {
				nested = map[string]any{}
			}
			target[name] = mergePatch(nested, v)
		default:
			target[name] = v
		}
	}
	return target
}
