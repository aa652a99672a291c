echo crewkit-begin
incoming
mkdir $n/files $n/undo $n/undo/files || stop "cannot write to $k"
input >$n/payload || stop 'no room for what is sent'
x=$(hash <$n/payload); if [ "${x%% *}" != "$payload" ]; then rm -rf $n; stop 'what arrived is not what was sent'; fi
exec 3<$n/payload
take() { if [ "$1" -gt 0 ]; then dd bs="$1" count=1 <&3 >"$2" 2>/dev/null; else : >"$2"; fi || stop 'no room for what is sent'; }
take "$plan" $n/plan
take "$manifest" $n/manifest
while read -r i z bs bm as am f; do
  if [ "$as" != - ]; then take "$z" $n/files/$i; fi
done <$n/plan
exec 3<&-
rm -f $n/payload
commit refuse
echo crewkit-end
