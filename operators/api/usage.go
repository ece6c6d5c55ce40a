package api

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/limits"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

func (p *poolOperations) getUsage(ctx context.Context, in *struct {
	PoolPath
	operators.UsageQuery
},
) (used operators.Usage, err error) {
	pool, err := p.ledger.Pool(ctx, in.Pool)
	if err != nil {
		return used, err
	}
	if in.Device != "" {
		used.Usage, err = p.deviceUsage(ctx, pool, in.Device)
		return used, err
	}
	highest, err := p.policies.HighestUses(ctx, pool, in.Limit)
	if err != nil {
		return used, fmt.Errorf("%w: %w", devices.ErrUnavailable, err)
	}
	used.Highest = toAPIPolicyUses(highest)
	return used, nil
}

func (p *poolOperations) listLimitedSubjects(ctx context.Context, in *struct {
	PoolPath
	operators.LimitedQuery
},
) (operators.LimitedList, error) {
	if _, err := p.ledger.Pool(ctx, in.Pool); err != nil {
		return operators.LimitedList{}, err
	}
	top, err := p.policies.TopRefused(ctx, in.Pool, in.Limit)
	if err != nil {
		return operators.LimitedList{}, fmt.Errorf("%w: %w", devices.ErrUnavailable, err)
	}
	list := operators.LimitedList{Limited: make([]operators.LimitedSubject, len(top))}
	for i, t := range top {
		list.Limited[i] = operators.LimitedSubject{Policy: t.Policy, Subject: t.Subject, Refusals: t.RefusalCount}
	}
	return list, nil
}

// deviceUsage returns how much one device has used of the policies of pool and of the policies of the device's profile.
func (p *poolOperations) deviceUsage(ctx context.Context, pool store.Pool, deviceID string) ([]operators.PolicyUse, error) {
	device, err := p.ledger.Device(ctx, deviceID)
	if err != nil {
		return nil, err
	}
	var ofProfile json.RawMessage
	if device.Profile != "" {
		profile, err := p.ledger.Profile(ctx, device.Profile)
		if err != nil {
			return nil, err
		}
		ofProfile = profile.Limits
	}
	uses, err := p.policies.Usage(ctx, pool, device, ofProfile)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", devices.ErrUnavailable, err)
	}
	return toAPIPolicyUses(uses), nil
}

func toAPIPolicyUses(uses []limits.SubjectUse) []operators.PolicyUse {
	shown := make([]operators.PolicyUse, len(uses))
	for i, u := range uses {
		shown[i] = operators.PolicyUse{
			Policy: u.Rule.Name, Owner: u.Rule.Owner, Allows: u.Rule.DescribeWindow(u.Window), Subject: u.Subject.Label,
			Used: u.Used, Max: u.Max, Window: u.Window, Remaining: u.Remaining, ResetMS: roundUpToUnits(u.Reset, time.Millisecond),
		}
	}
	return shown
}
