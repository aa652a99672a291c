echo crewkit-begin
if [ ! -d $k/undo ]; then echo nothing; echo crewkit-end; exit; fi
incoming
rmdir $n; cp -Rp $k/undo $n || { rm -rf $n; stop 'no room'; }
mkdir $n/undo $n/undo/files || stop 'no room'
commit keep
look
echo crewkit-end
