package store

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// GrantStart is the start of one grant, in force or ended, with the data to which policies may refer.
type GrantStart struct {
	Token      int64
	LeaseID    string
	Task       int64
	Batch      int64
	Pool       string
	Device     string
	Kind       string
	Payload    json.RawMessage   // nil means no payload
	Tags       map[string]string // present tags of the device
	Attributes json.RawMessage   // present attributes of the device
	Profile    string            // present profile of the device; empty means no profile

	PoolLimits, Limits, ProfileLimits json.RawMessage // policies of the pool, the batch and the device's profile; nil means no policies

	Now, GrantedAt time.Time // the time of the reading and of the grant, both by the database's clock
}

// PolicyOwner is a pool, batch or profile that has policies.
type PolicyOwner struct {
	Pool    string
	Batch   int64  // 0 if the policies do not belong to a batch
	Profile string // empty if the policies do not belong to a profile
	Limits  json.RawMessage
}

// grantStartScanDest returns pointers to the fields of start for grantStartsSQL.
func grantStartScanDest(start *GrantStart) (scanDest []any) {
	return []any{
		&start.Token, &start.LeaseID, &start.Task, &start.Batch, &start.Pool, &start.Device, &start.Kind, &start.Payload, &start.Tags,
		&start.Attributes, &start.Profile, &start.PoolLimits, &start.Limits, &start.ProfileLimits, &start.Now, &start.GrantedAt,
	}
}

// grantStartsSQL returns the query for the starts of grants and attempts that satisfy conditionSQL (with $1 and $2). orderAndLimitSQL (ORDER BY
// and LIMIT) applies to each of the two tables.
func grantStartsSQL(conditionSQL, orderAndLimitSQL string) string {
	each := func(table string) string {
		return `SELECT * FROM (SELECT token, lease, task, device, granted_at FROM ` + table + ` WHERE ` + conditionSQL + orderAndLimitSQL + `) AS ` + table + `_found`
	}
	return `
		SELECT x.token, x.lease, x.task, t.batch, t.pool, x.device, b.kind, coalesce(t.payload, b.payload), d.tags, d.attributes,
			d.profile, p.limits, b.limits, pr.limits, {now}, x.granted_at
		FROM (` + each("grants") + ` UNION ALL ` + each("attempts") + `) x
			JOIN tasks t ON t.id = x.task JOIN batches b ON b.id = t.batch JOIN pools p ON p.name = t.pool
			LEFT JOIN devices d ON d.id = x.device LEFT JOIN profiles pr ON pr.name = d.profile
		ORDER BY x.token DESC`
}

// Starts returns at most limit starts of a pool, highest fencing tokens first. If beforeToken is not 0, it returns only starts with token <
// beforeToken. Tokens are in the order of start times, except for concurrent claims.
func (s grants) Starts(ctx context.Context, pool string, beforeToken int64, limit int) ([]GrantStart, error) {
	if beforeToken == 0 {
		beforeToken = 1 << 53
	}
	found, err := collect(ctx, s.readSession(), grantStartScanDest, poolStartsSQL(), pool, beforeToken, limit)
	if err != nil {
		return nil, fmt.Errorf("reading the starts of pool %s: %w", pool, err)
	}
	// Each of the two tables gave at most limit rows. Only the first limit rows of the combined list are certain to have no gap.
	return found[:min(limit, len(found))], nil
}

func poolStartsSQL() string {
	return grantStartsSQL(`pool = $1 AND token < $2`, ` ORDER BY token DESC LIMIT $3`)
}

// StartByLease returns the start of the task with this lease id. It returns ErrNotFound if no grant of the task had this lease id.
func (s grants) StartByLease(ctx context.Context, task int64, leaseID string) (GrantStart, error) {
	found, err := collect(ctx, s.readSession(), grantStartScanDest, grantStartsSQL(`task = $1 AND lease = $2`, ``), task, leaseID)
	if err != nil {
		return GrantStart{}, fmt.Errorf("reading the start of lease %s: %w", leaseID, err)
	}
	if i := slices.IndexFunc(found, func(f GrantStart) bool { return f.LeaseID == leaseID }); i >= 0 {
		return found[i], nil
	}
	return GrantStart{}, ErrNotFound
}

// PolicyOwners returns each pool with policies, and each batch with policies and open tasks. It also returns each profile with policies,
// once for each pool in which a device of the profile holds a slot.
func (s grants) PolicyOwners(ctx context.Context) ([]PolicyOwner, error) {
	return collect(ctx, s.readSession(), func(l *PolicyOwner) []any { return []any{&l.Pool, &l.Batch, &l.Profile, &l.Limits} }, `
		SELECT name, 0, '', limits FROM pools WHERE limits IS NOT NULL AND deleted_at IS NULL
		UNION ALL
		SELECT b.pool, b.id, '', b.limits FROM batches b WHERE b.limits IS NOT NULL AND b.cancelled_at IS NULL
			AND EXISTS (SELECT 1 FROM tasks t WHERE t.batch = b.id AND t.state = 'pending')
		UNION ALL
		SELECT x.pool, 0, x.profile, pr.limits FROM (
			SELECT DISTINCT g.pool, d.profile FROM grants g JOIN devices d ON d.id = g.device WHERE d.profile IS NOT NULL) x
		JOIN profiles pr ON pr.name = x.profile WHERE pr.limits IS NOT NULL
		ORDER BY 1, 2, 3`)
}
