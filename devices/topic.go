package devices

import "strings"

const (
	topicPrefix  = "fleet/v1/"
	reportSuffix = "/report"
	replySuffix  = "/reply"
)

// DefaultGroup is the group in which the replicas share their subscription. The rights of packages broker and dynsec allow only this group.
const DefaultGroup = "dispatcher"

// ReportFilter matches the report topics of all devices.
const ReportFilter = topicPrefix + "+" + reportSuffix

// ReportTopic returns the topic to which a device publishes its reports.
func ReportTopic(id ID) string { return topicPrefix + string(id) + reportSuffix }

// ReplyTopic returns the topic on which a device receives its replies.
func ReplyTopic(id ID) string { return topicPrefix + string(id) + replySuffix }

// SharedReportFilter returns the filter of a shared subscription to all report topics. The broker sends each report to one member of group.
func SharedReportFilter(group string) string { return "$share/" + group + "/" + ReportFilter }

// ParseReportTopic returns the device of a report topic, or an *Error with CodeInvalidTopic or CodeInvalidDeviceID.
func ParseReportTopic(topic string) (ID, error) { return parseTopic(topic, reportSuffix) }

// ParseReplyTopic returns the device of a reply topic, or an *Error with CodeInvalidTopic or CodeInvalidDeviceID.
func ParseReplyTopic(topic string) (ID, error) { return parseTopic(topic, replySuffix) }

func parseTopic(topic, suffix string) (ID, error) {
	rest, hasPrefix := strings.CutPrefix(topic, topicPrefix)
	id, hasSuffix := strings.CutSuffix(rest, suffix)
	if !hasPrefix || !hasSuffix {
		return "", &Error{ReasonInvalid, CodeInvalidTopic, "topic: must be " + topicPrefix + "{device}" + suffix}
	}
	return ParseID(id)
}
