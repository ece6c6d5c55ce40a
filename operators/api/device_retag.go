package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

// changeImportedDevice changes spec, the settings of an existing device, to those in line, a line of an import. It keeps all tags that the line
// does not name, and the profile if the line names none.
func changeImportedDevice(line store.NewDevice, spec *store.DeviceSpec) error {
	if line.Profile != "" {
		spec.Profile = line.Profile
	}
	var tags map[string]string
	if line.Tags != nil {
		if err := json.Unmarshal(line.Tags, &tags); err != nil {
			return fmt.Errorf("decoding the tags of a line: %w", err)
		}
	}
	return changeTags(spec, tags, nil)
}

// changeTags sets the tags in newValues (values by name) and removes the tags in removedNames of a device.
func changeTags(spec *store.DeviceSpec, newValues map[string]string, removedNames []string) error {
	if spec.Tags == nil {
		spec.Tags = map[string]string{}
	}
	maps.Copy(spec.Tags, newValues)
	for _, name := range removedNames {
		delete(spec.Tags, name)
	}
	return checkTags(spec.Tags)
}

func addDeviceIDToError(id string, err error) error {
	if bad, ok := errors.AsType[*Problem](err); ok {
		return invalidProblem("device %s: %s", id, bad.Detail)
	}
	return err
}

type retagQuery struct {
	DeviceSelection

	Body operators.Retag
}

func (q *retagQuery) check() error {
	if len(q.Body.Set) == 0 && len(q.Body.Unset) == 0 {
		return invalidProblem("set, unset: at least one is required")
	}
	for _, name := range q.Body.Unset {
		if _, both := q.Body.Set[name]; both {
			return invalidProblem("unset: %q is also in set", name)
		}
	}
	return checkTags(q.Body.Set)
}

func (d *deviceOperations) retag(ctx context.Context, in *retagQuery) (retagged operators.DevicesChanged, err error) {
	if err := in.check(); err != nil {
		return retagged, err
	}
	ids, next, err := d.selectDevices(ctx, &in.DeviceSelection)
	if err != nil {
		return retagged, err
	}
	filter, err := (&deviceQuery{in.Page, in.DeviceFilter}).filter()
	if err != nil {
		return retagged, err
	}
	n, err := d.ledger.ChangeDevices(ctx, operatorName(ctx), ids, in.DryRun, func(id string, spec *store.DeviceSpec) error {
		for name, value := range filter.Tags {
			if has, there := spec.Tags[name]; !there || has != value { // the tag was changed after the list was read
				return nil
			}
		}
		if err := changeTags(spec, in.Body.Set, in.Body.Unset); err != nil {
			return addDeviceIDToError(id, err)
		}
		return nil
	})
	return operators.DevicesChanged{Devices: n, NextPageToken: next}, err
}
