package store

import (
	"cmp"
	"context"
	"fmt"
	"math"
)

// NamedLooked is how many batches one reading of BatchesNamed looks at.
const NamedLooked = lookedAt

// BatchesNamed returns up to limit batches with this in their names, newest first, with
// their counts: of those below the id before (0 = from the newest) and in the stretch that
// one reading looks at. Upper and lower case are the same.
func (s batches) BatchesNamed(ctx context.Context, part string, f BatchFilter, before int64, limit int) ([]Batch, Stretch, error) {
	before = cmp.Or(before, math.MaxInt64)
	stretch, err := s.stretchOf(ctx, &query{args: []any{before, lookedAt}}, `SELECT id FROM batches WHERE id < $1 ORDER BY id DESC LIMIT $2`, "DESC")
	if err != nil {
		return nil, Stretch{}, fmt.Errorf("looking for batches: %w", err)
	}
	list, err := collect(ctx, s.planned(), aroundDest, batchesNamedText(), before, lookedAt, containing(part), clampLimit(limit), string(f.Lane))
	if err != nil {
		return nil, Stretch{}, fmt.Errorf("looking for batches: %w", err)
	}
	return list, stretch, s.count(ctx, list)
}

func batchesNamedText() string {
	return `
		SELECT ` + aroundColumns + ` FROM (
			SELECT id FROM (SELECT id, name, lane FROM batches WHERE id < $1 ORDER BY id DESC LIMIT ` + hidden("$2", "integer") + `) AS looked
			WHERE ` + like("name", "$3") + ` AND ($5 = '' OR lane = $5) ORDER BY id DESC LIMIT $4) AS found
		JOIN batches b ON b.id = found.id JOIN pools p ON p.name = b.pool ORDER BY b.id DESC`
}
