package api

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

// Limits of a device's tags.
const (
	maxTags     = 64
	maxTagsSize = 8 << 10 // bytes, as JSON
	maxTagName  = 64      // bytes
)

type devicePatch struct {
	operators.DevicePatch

	Attributes json.RawMessage `json:"attributes,omitempty" hidden:"true"` // for a better answer than that there is none
}

func (d *registry) patch(ctx context.Context, in *struct {
	DevicePath
	Body devicePatch
},
) (operators.Device, error) {
	if present(in.Body.Attributes) != nil {
		return operators.Device{}, invalid("attributes: the device's own, which only it sets; tags are yours")
	}
	changed, err := d.ledger.ChangeDevice(ctx, actor(ctx), string(in.ID), func(spec *store.DeviceSpec) error {
		apply(in.Body.Profile, &spec.Profile, "")
		return in.Body.mergeTags(spec.Tags)
	})
	return showDevice(changed), err
}

func (p devicePatch) mergeTags(tags map[string]string) error {
	if !p.Tags.Said {
		return nil
	}
	if p.Tags.To == nil {
		clear(tags)
		return nil
	}
	for name, value := range *p.Tags.To {
		if value == nil {
			delete(tags, name)
			continue
		}
		tags[name] = *value
	}
	return checkTags(tags)
}

func checkTags(tags map[string]string) error {
	for name := range tags {
		if name == "" || len(name) > maxTagName || strings.Contains(name, ":") {
			return invalid("tags: %q: a name has 1-%d bytes and no colon", name, maxTagName)
		}
	}
	if len(tags) > maxTags {
		return invalid("tags: %d, at most %d", len(tags), maxTags)
	}
	if text, _ := json.Marshal(tags); len(text) > maxTagsSize { // strings cannot fail
		return invalid("tags: %d bytes as JSON, at most %d", len(text), maxTagsSize)
	}
	return nil
}
