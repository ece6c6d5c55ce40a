package store

import (
	"cmp"
	"context"
	"fmt"
	"math"
)

// NamedSearchLimit is the number of batches that one call of BatchesNamed searches.
const NamedSearchLimit = searchLimit

// BatchesNamed returns at most limit batches that match filter and whose names contain namePart, newest first, with their counts. It
// ignores upper and lower case. If beforeID is not 0, it searches only batches with id < beforeID. One call searches at most
// NamedSearchLimit batches; the returned SearchBound says at which id the search ended.
func (s batches) BatchesNamed(ctx context.Context, namePart string, filter BatchFilter, beforeID int64, limit int) ([]Batch, SearchBound, error) {
	beforeID = cmp.Or(beforeID, math.MaxInt64)
	stretch, err := s.searchBound(ctx, &query{args: []any{beforeID, searchLimit}}, `SELECT id FROM batches WHERE id < $1 ORDER BY id DESC LIMIT $2`, "DESC")
	if err != nil {
		return nil, SearchBound{}, fmt.Errorf("finding batches: %w", err)
	}
	list, err := collect(ctx, s.customPlanSession(), batchAndPoolDest, batchesNamedText(), beforeID, searchLimit, likePattern(namePart), clampLimit(limit), string(filter.Lane))
	if err != nil {
		return nil, SearchBound{}, fmt.Errorf("finding batches: %w", err)
	}
	return list, stretch, s.fillCounts(ctx, list)
}

// batchesNamedText returns the statement of BatchesNamed.
func batchesNamedText() string {
	return `
		SELECT ` + batchAndPoolColumns + ` FROM (
			SELECT id FROM (SELECT id, name, lane FROM batches WHERE id < $1 ORDER BY id DESC LIMIT ` + hideFromPlanner("$2", "integer") + `) AS looked
			WHERE ` + like("name", "$3") + ` AND ($5 = '' OR lane = $5) ORDER BY id DESC LIMIT $4) AS found
		JOIN batches b ON b.id = found.id JOIN pools p ON p.name = b.pool ORDER BY b.id DESC`
}
